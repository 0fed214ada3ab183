"""What the results say about each target: measured, met or not, and why. Knows results as stage.measure() gives them, and nothing else."""

import statistics

import sampler
from targets import Row

SPEED_MIN = 0.9
OVER_SAFE_MIN = 3.0
HPL_MAX = 0.03
ABOVE_MAX_S = 0.05
MEAN_MIN = 0.95
PREDICTED_WITHIN = 0.10


def window(result):
    """Seconds since 1970 at which the first program began and the last one ended."""
    return result["programs"][0]["began_ms"] / 1e3, result["programs"][-1]["ended_ms"] / 1e3


def seconds(result):
    """Of all programs together; None if the kernel ended them before."""
    if len(result.get("programs", [])) < 4:
        return None
    return sum(program["ended_ms"] - program["began_ms"] for program in result["programs"]) / 1e3


def per_iteration(result):
    """The same, over the iterations that were run: to be compared where these are as many."""
    total = seconds(result)
    return total / result["iterations"] if total else None


def iterations_s(result, program):
    """Time of each iteration of a program: the last of its jobs. Those before look at the input, as often whatever the iterations are."""
    return [(end - begin) / 1e3 for begin, end in program["jobs_ms"][-result["iterations"]:]]


def pass_s(result):
    """Median time of one iteration of all programs."""
    return statistics.median(time for program in result["programs"] for time in iterations_s(result, program))


def iteration_s(result):
    """Mean time of one iteration of all programs; None if the kernel ended them before."""
    return statistics.mean(time for program in result["programs"] for time in iterations_s(result, program)) if seconds(result) else None


def hpl(result):
    """HPL's burst, or None."""
    return next((burst for burst in result.get("bursts", []) if burst["name"] == "HPL"), None)


def hpl_s(result):
    burst = hpl(result)
    return burst and burst["solve_s"]


def served_bytes(result):
    """By the PFS while the programs ran."""
    found = sampler.between(result["served"], *window(result))
    return found[-1][1] - found[0][1] if found else 0


def mean_tier(result):
    found = sampler.between(result["samples"], *window(result))
    return sampler.mean(found, 2) if found else None


def bounds(results, pfs_bytes_per_s):
    """What this machine and this load allow: the ratio of memory and PFS, what a full tier then gains over half a tier, and the speed of an
    ideal tier beside HPL, as a share of the upper bound. Reads are taken not to overlap with computing."""
    upper = results["upper"]
    rate = upper["sizes"]["input"] / pass_s(upper)
    ratio = rate / pfs_bytes_per_s
    found = {"memory_bytes_per_s": rate, "ratio": ratio, "over_safe": (1 + ratio) / 2}
    forebay = results.get("forebay", {})
    if hpl(forebay) and seconds(forebay):
        found["of_upper"] = seconds(upper) / (seconds(upper) + ideal_s(forebay, rate, pfs_bytes_per_s))
    return found


def ideal_s(result, memory_bytes_per_s, pfs_bytes_per_s):
    """Seconds that HPL costs the programs if the tier gives away no more than HPL needs, when it needs it: meanwhile each pass reads that from
    the PFS, and afterwards it has to come once more."""
    burst, size = hpl(result), result["sizes"]
    samples = sampler.between(result["samples"], burst["began"], burst["ended"])
    full = max(tier for _, _, tier in sampler.between(result["samples"], *window(result)))
    room = size["target"] * size["node"]
    lost = most = 0.0
    for (at, used, tier), (until, _, _) in zip(samples, samples[1:]):
        given = min(max(used - tier + full - room, 0), full)
        slower = 1 + given / pfs_bytes_per_s / (size["input"] / memory_bytes_per_s)
        lost += (until - at) * (1 - 1 / slower)
        most = max(most, given)
    return lost + most / pfs_bytes_per_s


def rows(results, predictions, pfs_bytes_per_s):
    """Of the table of targets, for those results that there are."""
    limits = bounds(results, pfs_bytes_per_s) if seconds(results.get("upper", {})) else {}
    return [row for row in [*speed(results, limits), *beside(results), *memory(results), *simulated(results, predictions)] if row]


def speed(results, limits):
    upper, forebay, small = (per_iteration(results.get(name, {})) for name in ("upper", "forebay", "small"))
    if upper and forebay:
        bound = limits.get("of_upper")
        why = f"an ideal tier: about {100 * bound:.0f} %, as what HPL takes has to be read again" if bound else ""
        yield Row("Spark ML, `forebay`: speed of the upper bound", f"{100 * upper / forebay:.1f} %", f">= {100 * SPEED_MIN:.0f} %", upper / forebay >= SPEED_MIN, why)
    if small and forebay:
        why = f"memory is {limits['ratio']:.1f} times as fast as the PFS; if half of the reads miss, at most {limits['over_safe']:.1f} times" if limits else ""
        yield Row("Spark ML, `forebay`: speed of the safe static tier", f"{small / forebay:.2f} times", f">= {OVER_SAFE_MIN:g} times", small / forebay >= OVER_SAFE_MIN, why)


def beside(results):
    alone, control = hpl_s(results.get("hpl", {})), hpl_s(results.get("control", {}))
    found = hpl_s(results.get("forebay", {}))
    if alone and found:
        why = f"beside the same programs without a limit {100 * (control / alone - 1):+.1f} %: caches and memory bandwidth" if control else ""
        change = found / alone - 1
        yield Row("HPL beside `forebay`, against alone", f"{100 * change:+.1f} %", f"<= {100 * HPL_MAX:+.0f} %", change <= HPL_MAX, why)
    if control and found:
        change = found / control - 1
        yield Row("the same, against the control without a limit", f"{100 * change:+.1f} %", f"<= {100 * HPL_MAX:+.0f} %", change <= HPL_MAX)
    large = results.get("large")
    if large:
        time = hpl_s(large)
        hurt = large["kills"] > 0 or (alone and time and time / alone - 1 > HPL_MAX)
        ended = f"HPL {time:.2f} s" if time else "HPL did not end"
        yield Row("static large hurts", f"{large['kills']} OOM kills, {large['limit_hits']} times at the limit; {ended}, {len(large['programs'])} of 4 programs ended", "shown", bool(hurt))


def memory(results):
    for name in ("forebay", "dynims"):
        result = results.get(name)
        if not result:
            continue
        target = name == "forebay"
        longest, total = result["samples_exact"]["above_longest_s"]["target_2"], result["samples_exact"]["above_s"]["target_2"]
        yield Row(f"`{name}`: above r0 + 2 %", f"{1e3 * longest:.0f} ms at a time, {total:.2f} s in all", f"<= {1e3 * ABOVE_MAX_S:.0f} ms" if target else "-",
                  longest <= ABOVE_MAX_S if target else None, f"{len(result['bursts'])} bursts of HPL and the hog")
        yield Row(f"`{name}`: OOM kills", str(result["kills"]), "0" if target else "-", result["kills"] == 0 if target else None)


def simulated(results, predictions):
    for name, predicted in predictions.items():
        measured, peak = mean_tier(results[name]), peak_share(results[name])
        target = name in ("forebay", "dynims")
        if name == "forebay":
            share = measured / predicted["clairvoyant_bytes"]
            yield Row("mean tier, of a clairvoyant's", f"{100 * share:.1f} %", f">= {100 * MEAN_MIN:.0f} %", share >= MEAN_MIN,
                      "the tier is filled by what Spark reads, the clairvoyant's as fast as the PFS can")
        for what, ours, theirs in (("mean tier", measured, predicted["tier_bytes"]), ("highest use", peak, predicted["peak"])):
            off = theirs / ours - 1
            yield Row(f"simulated {what}, `{name}`", f"{100 * off:+.1f} %", f"within {100 * PREDICTED_WITHIN:.0f} %" if target else "-",
                      abs(off) <= PREDICTED_WITHIN if target else None)


def peak_share(result):
    """Highest use while the programs ran, as a share of the node."""
    return max(sample[1] for sample in sampler.between(result["samples"], *window(result))) / result["sizes"]["node"]
