"""The scenario that `slackwater init` writes: every key, explained."""

SCENARIO = """\
# A federated run that must fit a carbon budget. Plan it with: slackwater plan scenario.toml

start     = 2022-01-01T00:00:00Z   # start of the first slot, with a time zone
rounds    = 10                     # T: slots the run needs at the least
slack     = 90                     # extra slots it may take; or give a deadline instead:
# deadline = 2022-01-05T04:00:00Z
fine_tune = 1                      # slots at the end in which every client trains (0 = none)
budget_kg = 3.0                    # CO2e for everything below
alpha     = 0.1                    # 1 = lowest carbon only, towards 0 = fair to clients; or "log", "max-min"

# slot_minutes  = 60               # length of a slot; intensity is averaged over it
# round_minutes = 45               # a round, where it is shorter than its slot
# window        = "available"      # fine-tune with those who are there; "all" (default) needs everybody
# recall        = 10               # everybody trains at least once in so many slots before the window
# max_parallel  = 4                # at most so many clients in a slot before the window

[data]
source = "typical"                 # embedded and synthetic; or a CSV file or a folder of them, relative to this file
factor = "lifecycle"               # or "direct"
# fill_hours = 3                   # fill gaps of up to 3 hours by interpolation (they are listed in every output)

# [server]                         # what runs beside the clients whenever anyone trains
# zone    = "IE"
# power_w = 150
# pue     = 1.2

[[client]]
name    = "brussels"
zone    = "BE"                     # `slackwater zones` lists them
power_w = 300                      # draw while training, the whole of it

[[client]]
name    = "london"
zone    = "GB"
power_w = 300
idle_w  = 40                       # draw while waiting, charged until the run ends
pue     = 1.3                      # of its data centre

[[client]]
name    = "dublin"
zone    = "IE"
power_w = 300
min_slots = 2                      # at least so many slots before the window
# max_slots = 30                   # and at most so many

[[client]]
name    = "helsinki"
zone    = "FI"
power_w = 300
unavailable = ["mon-fri 08:00-16:00", "2022-01-06T00:00Z/2022-01-07T00:00Z"]   # UTC

[[client]]
name    = "stockholm"
zone    = "SE-SE3"
power_w = 300

[[client]]
name    = "frankfurt"
zone    = "DE"
power_w = 300
required = true                    # must train before the window: the same as min_slots = 1

[[client]]
name    = "paris"
zone    = "FR"
energy_kwh = 0.25                  # of one round, instead of power_w
"""
