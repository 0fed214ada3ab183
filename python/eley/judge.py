"""Evaluates the results for each target: the measured value, whether the target is met, and why. Uses only results of stage.measure()."""

import math
import statistics
from dataclasses import dataclass

from targets import Row

KEPT_MIN = 0.95
GAIN_MIN = {"forebay": 0.80, "forebay-30": 0.95}
BOUND_WITHIN = 0.10
CONTROL_MAX = 0.02
SLOWDOWN = (0.20, 0.60)
ESTIMATE_MAX = 0.05
PREDICTED_WITHIN = 0.15
# Of the search for a map time.
STEP_S = 0.05
# From the start of this wave on, the estimate has to be the site's.
LEARNT_WAVE = 2


@dataclass(frozen=True)
class Alone:
    """Seconds of the writer's phases alone: their median, and the spread above it."""

    median_s: float
    spread_s: float
    count: int


def runs(results, name):
    return [result for result in results if result["setting"] == name]


def length(phase):
    return phase["ended"] - phase["began"]


def alone(results):
    """The first phase of each run is left out, because it creates the files. 95 % of the phases stay within the spread."""
    times = sorted(length(phase) for result in runs(results, "alone") for phase in result["phases"][1:])
    if not times:
        return None
    middle = statistics.median(times)
    return Alone(middle, times[math.ceil(0.95 * len(times)) - 1] - middle, len(times))


def beside(result):
    """Phases that overlap with the map stage."""
    began, ended = result["map"]
    return [phase for phase in result["phases"] if phase["began"] < ended and phase["ended"] > began]


def within(result):
    """Phases that overlapped the map stage for at least their time alone."""
    began, ended = result["map"]
    return [phase for phase in result["phases"] if phase["began"] >= began and phase["began"] + result["alone_s"] <= ended]


def slowdowns(results, name, base):
    """Of each phase within the map stage, against alone."""
    return [length(phase) / base.median_s - 1 for result in runs(results, name) for phase in within(result)]


def kept(results, name, qos, base):
    """How many phases beside the map stage kept a deadline, with the writer's own spread taken off, and how many there were."""
    times = [length(phase) for result in runs(results, name) for phase in beside(result)]
    return sum(time <= base.median_s * (1 + qos) + base.spread_s for time in times), len(times)


def map_s(results, name):
    """Map times of all runs."""
    return [result["map"][1] - result["map"][0] for result in runs(results, name)]


def spread(values):
    """Half of the range: means of so few runs may differ by this much by chance."""
    return (max(values) - min(values)) / 2


def gain_kept(results, name):
    """Share of what no-action gains over naive-bb that a setting keeps; None where no-action gains nothing."""
    naive, most, found = (map_s(results, one) for one in ("naive-bb", "no-action", name))
    if not naive or not most or not found:
        return None
    gained = statistics.mean(naive) - statistics.mean(most)
    return (statistics.mean(naive) - statistics.mean(found)) / gained if gained > 0 else None


def estimate_errors(result):
    """Relative errors of the estimated times of phases that began within the map stage, once two waves had begun to compute."""
    starts = sorted(wave["compute"][0] for wave in result["waves"] if wave["compute"][0] is not None)
    if len(starts) <= LEARNT_WAVE:
        return []
    began, ended = starts[LEARNT_WAVE], result["map"][1]
    known = [phase for phase in result["plan"]["phases"] if began <= phase["began"] < ended and phase["estimated_ms"] and phase["observed_ms"]]
    return [abs(phase["estimated_ms"] / phase["observed_ms"] - 1) for phase in known]


def budget_s(results, sizes, base, qos):
    """The least map time of planners that keep deadlines: the cores need what they need, and the servers have time for the input only in what
    the writer's phases leave. None without the measured compute of the job."""
    cores = map_s(results, "local")
    if not cores:
        return None
    needed_s, at_s = sizes.input_bytes / sizes.pfs_bytes_per_s, statistics.median(cores)
    while at_s - written_s(at_s, sizes.compute_s, base.median_s, qos) < needed_s:
        at_s += STEP_S
    return at_s


def written_s(window_s, compute_s, alone_s, qos):
    """Seconds of the servers that the writer takes in a window of this length at least: one that begins with its compute."""
    longest_s = alone_s * (1 + qos)
    periods, rest_s = divmod(window_s, compute_s + longest_s)
    return alone_s * periods + max(rest_s - compute_s, 0.0) / (1 + qos)


def rows(results, sizes, predictions):
    """Of the table of targets, for those results that there are."""
    base = alone(results)
    if not base:
        return []
    found = [*controls(results, base), *deadlines(results, base), *gains(results, sizes, base, predictions), *against_eley(results, predictions)]
    return [*found, *estimates(results), *simulated(results, base, predictions)]


def percent(share, sign="+"):
    return f"{100 * share:{sign}.1f} %"


def controls(results, base):
    yield Row("writer alone", f"{base.median_s:.3f} s, spread {base.spread_s:.3f} s ({percent(base.spread_s / base.median_s, '')})", "-", None,
              f"{base.count} phases; the spread is taken off below")
    found = slowdowns(results, "local", base)
    if found:
        slowdown = statistics.mean(found)
        yield Row("control: phases beside the same job on the local disk", percent(slowdown), f"<= {percent(CONTROL_MAX)}", slowdown <= CONTROL_MAX,
                  f"{len(found)} phases; what cores alone cost")
    found = slowdowns(results, "naive-bb", base)
    if found:
        low, high = SLOWDOWN
        slowdown = statistics.mean(found)
        yield Row("phases beside `naive-bb`", f"{percent(slowdown)}, worst {percent(max(found))}", f"{percent(low)} to {percent(high)}", low <= slowdown <= high, f"{len(found)} phases")


def deadlines(results, base):
    for name, qos, is_target in (("naive-bb", 0.05, False), ("no-action", 0.05, False), ("full-delay", 0.05, False), ("eley", 0.05, True), ("forebay", 0.05, True),
                                 ("forebay-15", 0.15, True), ("forebay-30", 0.30, True)):
        inside, count = kept(results, name, qos, base)
        if not count:
            continue
        slower = slowdowns(results, name, base)
        measured = f"{inside} of {count} phases ({100 * inside / count:.0f} %)"
        why = f"mean {percent(statistics.mean(slower))}, worst {percent(max(slower))}" if slower else ""
        if is_target:
            yield Row(f"`{name}`: phases within {100 * qos:.0f} %", measured, f">= {100 * KEPT_MIN:.0f} %", inside / count >= KEPT_MIN, why)
        elif name == "full-delay":
            yield Row(f"`{name}`: phases within {100 * qos:.0f} %", measured, "-", None, why)
        else:
            yield Row(f"`{name}`: phases within {100 * qos:.0f} %, without deadlines", measured, "violated", inside / count < KEPT_MIN, why)


def gains(results, sizes, base, predictions):
    naive, most = map_s(results, "naive-bb"), map_s(results, "no-action")
    if not naive or not most:
        return
    gained = statistics.mean(naive) - statistics.mean(most)
    noise = spread(naive) + spread(most)
    yield Row("map time that `no-action` gains over `naive-bb`", f"{gained:.1f} s of {statistics.mean(naive):.1f} s", "-", None, f"runs differ by {noise:.1f} s")
    for name, least in GAIN_MIN.items():
        share = gain_kept(results, name)
        if share is None:
            continue
        qos = runs(results, name)[0]["qos"]
        bound_s = budget_s(results, sizes, base, qos)
        allows = min((statistics.mean(naive) - bound_s) / gained, 1.0) if bound_s else 1.0
        why = [f"the servers' time allows {100 * allows:.0f} % (map time {bound_s:.1f} s)"] if bound_s else []
        why += [f"simulated {100 * one:.0f} %" for one in [predicted_share(predictions, name)] if one is not None]
        why += ["less than the noise of the gain"] if gained <= noise else []
        yield Row(f"`{name}`: of that gain", f"{100 * share:.0f} %", f">= {100 * least:.0f} %, or what is possible within {100 * BOUND_WITHIN:.0f} %",
                  share >= min(least, allows * (1 - BOUND_WITHIN)), "; ".join(why))


def predicted_share(predictions, name):
    """As gain_kept() of the simulated map times."""
    times = [predictions.get(one, {}).get("map_s") for one in ("naive-bb", "no-action", name)]
    if None in times or times[0] <= times[1]:
        return None
    return (times[0] - times[2]) / (times[0] - times[1])


def against_eley(results, predictions):
    ours, theirs = map_s(results, "forebay"), map_s(results, "eley")
    if not ours or not theirs:
        return
    change, noise = statistics.mean(ours) / statistics.mean(theirs) - 1, (spread(ours) + spread(theirs)) / statistics.mean(theirs)
    simulated_s = [predictions.get(one, {}).get("map_s") for one in ("forebay", "eley")]
    expected = simulated_s[0] / simulated_s[1] - 1 if None not in simulated_s else 0.0
    wanted = -noise if expected < -noise else noise
    yield Row("map time of `forebay` against `eley`", percent(change), f"<= {percent(wanted)}", change <= wanted, f"noise {percent(noise, '')}, simulated {percent(expected)}")


def estimates(results):
    for name in ("eley", "forebay", "forebay-30"):
        errors = [error for result in runs(results, name) for error in estimate_errors(result)]
        if errors:
            error = statistics.mean(errors)
            yield Row(f"`{name}`: error of the estimated phase time", percent(error, ""), f"<= {percent(ESTIMATE_MAX, '')}", error <= ESTIMATE_MAX,
                      f"{len(errors)} phases after two waves, worst {percent(max(errors), '')}")


def simulated(results, base, predictions):
    for name, predicted in predictions.items():
        times, slower = map_s(results, name), slowdowns(results, name, base)
        if times:
            off = predicted["map_s"] / statistics.mean(times) - 1
            yield Row(f"simulated map time, `{name}`", percent(off), f"within {100 * PREDICTED_WITHIN:.0f} %", abs(off) <= PREDICTED_WITHIN, f"{predicted['map_s']:.1f} s, measured {statistics.mean(times):.1f} s")
        if slower and predicted.get("slowdown") is not None:
            off = (1 + predicted["slowdown"]) / (1 + statistics.mean(slower)) - 1
            yield Row(f"simulated phase time, `{name}`", percent(off), f"within {100 * PREDICTED_WITHIN:.0f} %", abs(off) <= PREDICTED_WITHIN,
                      f"{percent(predicted['slowdown'])}, measured {percent(statistics.mean(slower))}")
