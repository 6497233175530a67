"""Every question that the page can ask, one file each: a file that is put here is asked, routed and typed."""
