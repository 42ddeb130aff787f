"""From where to why: replay, lift, hypotheses, reroute, graft, bisect."""
