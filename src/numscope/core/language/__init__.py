"""The languages of people: English is written where it is said; Chinese is looked up by it, here and in the browser.

viewer.json     words of the pages
answers.json    sentences of reports, which terminal, viewer and HTML report show
commands.json   help, errors and tables of the command line

A report's own text (`--json`, `.report`, logs of a job) stays English: programs read it. Who shows a sentence to a person
gives it to `translated`. `{0}`, `{1}` … stand for what a sentence is about.
"""
