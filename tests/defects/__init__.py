"""Every defect that was found so far, and the command that shows it on the revision before its mend."""
