"""The dashboard: a local page to plan and to follow runs. It writes only where its owner says so; every view is also JSON."""
