#!/bin/sh
# The main workflow on embedded data: scenario, plan, savings of slack, what-ifs, training, report. All files go to demo/.
set -eu
mkdir -p demo
slackwater init demo/scenario.toml --force

echo; echo "== The plan =="
slackwater plan demo/scenario.toml --out demo/run --chart demo/schedule.png

echo; echo "== Savings of slack alone =="
slackwater savings --zones BE,GB,IE,FI,SE-SE3,DE,FR --chart demo/savings.png --chart-clients demo/savings_by_clients.png

echo; echo "== What if =="
slackwater compare demo/scenario.toml --alpha 1,0.1,0.001 --slack 0,50,90 --budget 1,2,3,5 --chart demo/pareto.png

echo; echo "== Training: the plan, and no slack at the same budget =="
rm -rf demo/run/training
slackwater train demo/run/plan.json --task digits --eval-every 3 --out demo/run/training --chart demo/accuracy.png

echo; echo "== The report =="
slackwater report demo/run/training --html demo/report.html --codecarbon demo/emissions.csv --model-card demo/model_card.md
slackwater report demo/run/training

echo; echo "Files in demo/:"; ls demo
echo "Read the report: open demo/report.html in a browser."
echo "See the run in the dashboard: slackwater serve demo/run/training"
