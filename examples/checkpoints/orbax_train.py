"""A training loop in JAX that saves its state by Orbax.

    forebay run --write-back /pfs/run --keep 2 -- python3 orbax_train.py /pfs/run 60
    forebay run --write-back /pfs/run --keep 2 -- python3 orbax_train.py /pfs/run 60 --resume

Orbax writes each checkpoint into a directory that it renames when it is complete, and resumes from the newest. Nothing here knows of Forebay.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

EVERY = 80


@jax.jit
def update(state, step):
    batch = jax.random.normal(jax.random.key(step), (4096, 256))
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w - batch) ** 2))(state["weights"])
    velocity = 0.9 * state["velocity"] - 0.1 * gradient
    return {"weights": state["weights"] + velocity, "velocity": velocity}, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("steps", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pause", type=float, default=0, metavar="SECONDS", help="of each step, to have time to look")
    args = parser.parse_args()
    state = {"weights": jnp.zeros((256, 256)), "velocity": jnp.zeros((256, 256))}
    step = 0
    with ocp.CheckpointManager(args.directory) as manager:
        if args.resume:
            step = manager.latest_step()
            state = manager.restore(step, args=ocp.args.StandardRestore(state))
        print(f"begins at step {step}", flush=True)
        while step < args.steps:
            state, loss = update(state, step)
            step += 1
            time.sleep(args.pause)
            if step % EVERY == 0:
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    print(f"ends at step {step} with {float(loss)!r}", flush=True)


main()
