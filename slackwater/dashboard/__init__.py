"""The dashboard: a local page to plan and to follow runs. It only reads; every view is also available as JSON."""
