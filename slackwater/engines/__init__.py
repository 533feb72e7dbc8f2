"""Engines that reach the sites of a run: in this process, or through Flower. All use the runner in `slackwater.live`."""
