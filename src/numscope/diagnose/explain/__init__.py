"""Explanations of suspects, an explainer per kind; `suspect` knows which explainer to ask."""
