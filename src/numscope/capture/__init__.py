"""Capture, inside the user's job: session, scope, recorder; and one folder per framework that feeds them."""

from numscope.core.callable_module import make_callable

make_callable(__name__, "numscope.capture.session", "capture")
