"""A training loop in PyTorch that saves model and optimizer by `torch.save`.

    forebay run --write-back /pfs/run --keep 2 -- python3 train.py /pfs/run 300
    forebay run --write-back /pfs/run --keep 2 -- python3 train.py /pfs/run 300 --from $(forebay checkpoint newest /pfs/run)

Nothing here knows of Forebay.
"""

import argparse
import os

import torch

EVERY = 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("steps", type=int)
    parser.add_argument("--from", dest="start")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    if args.start:
        state = torch.load(args.start)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    print(f"begins at step {step}", flush=True)
    while step < args.steps:
        # The batch of a step is always the same, also after a restart.
        batch = torch.randn(64, 256, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = ((model(batch) - batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, os.path.join(args.directory, f"{step}.pt"))
    print(f"ends at step {step} with {loss.item()!r}", flush=True)


main()
