"""The validation report: one self-contained HTML file, Markdown, and an evidence bundle."""
