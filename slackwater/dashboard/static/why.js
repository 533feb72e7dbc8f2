// Explains why a client trains in an hour or not, from the displayed plan.
import { kilograms, printable, slotTime } from "./base.js";

function ordinal(number) {
  const tens = number % 100, last = tens > 10 && tens < 14 ? 0 : number % 10;
  return `${number}${["th", "st", "nd", "rd"][last] ?? "th"}`;
}

/** Return the lines about a cell: client and hour, intensity, emissions, and the reason. */
export function tellCell(problem, plan, bits, available, client, slot) {
  const { clients } = problem, zone = clients.zone[client];
  const intensity = problem.intensity_g_per_kwh[zone][slot];
  const kg = intensity / 1000 * clients.energy_kwh[client];
  return [
    `${printable(clients.name[client])} (${printable(problem.zones[zone])}), ${slotTime(problem, slot)}`,
    problem.start ? `${intensity.toFixed(intensity < 10 ? 1 : 0)} g/kWh · ${kilograms(kg)} kg` : `${kilograms(kg)} kg`,
    reason(problem, plan, bits, available, client, slot),
  ];
}

function reason(problem, plan, bits, available, client, slot) {
  if (!plan) return "There is no plan.";
  const [first, stop] = plan.window, trains = bits.has(client, slot);
  const can = available.has(problem.clients.mask[client], slot);
  if (slot >= stop) return `Does not train: the run has ended (s = ${plan.end}).`;
  if (slot >= first) return trains ? "Trains: all clients train in the fine-tuning window." : "Does not train: unavailable in this part of the window.";
  if (!can) return "Does not train: unavailable in this hour.";
  if (problem.coupled) return trains ? "Trains: chosen jointly with the other clients' hours." : "Does not train: not among the hours chosen jointly for all clients.";
  const line = problem.intensity_g_per_kwh[problem.clients.zone[client]];
  let rank = 1, usable = 0, gets = 0;
  for (let at = 0; at < first; at++) {
    if (!available.has(problem.clients.mask[client], at)) continue;
    usable++;
    gets += bits.has(client, at);
    if (line[at] < line[slot] || (line[at] === line[slot] && at < slot)) rank++;
  }
  const place = `its ${ordinal(rank)} cleanest hour of ${usable} before the window`;
  const { recall } = plan.settings;
  if (recall && trains && rank > gets) return `Trains: ${place}; recall asks for a round in every ${recall} slots.`;
  if (recall && !trains && rank <= gets) return `Does not train: ${place}; recall needs some of its ${gets} rounds in other hours.`;
  if (trains || (recall && gets)) return `${trains ? "Trains" : "Does not train"}: ${place}; the budget pays ${gets}.`;
  if (gets === problem.clients.max_slots[client]) return `Does not train: ${place}; it is at its limit of ${gets}.`;
  return gets ? `Does not train: ${place}; the budget pays the ${gets} cleanest.` : `Does not train: ${place}; the budget pays none.`;
}
