"""What runs inside the user's job: session, scope, recorder; and one folder per framework that feeds them."""
