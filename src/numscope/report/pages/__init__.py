"""The data behind the viewer's pages and the HTML report."""
