"""The dashboard: a local page to plan with and to watch runs. It only reads; every view is also JSON."""
