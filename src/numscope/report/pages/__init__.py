"""What the viewer's pages and the HTML report ask of a comparison."""
