"""From where to why: replay, lift, hypotheses, reroute, graft, bisect."""

from numscope.core.callable_module import make_callable

make_callable(__name__, "numscope.diagnose.diagnosis", "diagnose")
