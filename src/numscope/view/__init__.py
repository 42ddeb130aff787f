"""The web server and the built front end."""
