"""Every question that the page can ask, by subject: a class that is put here is asked, routed and typed."""
