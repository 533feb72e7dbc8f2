"""How the sites of a run are reached: in this process, or by Flower. The runner in `slackwater.live` is the same for all."""
