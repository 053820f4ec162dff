"""A request's rounds to look at: from a trace or from reports, on the terminal or as a page."""
