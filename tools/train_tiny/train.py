"""Trains models/tiny on one GPU.

    python train.py --data DIR --out DIR --seconds 1000

DIR of the data is what data.py wrote. The schedule follows the clock: the learning rate is
constant up to --decay of the time and then falls to zero; from --qat of the time on, every
matrix is used as its 4-bit form stands for (gradients pass straight through). Matrices inside
the layers are trained by Muon, everything else by Adam.
"""
import argparse
import concurrent.futures
import json
import lzma
import os
import time

import numpy as np
import torch
from safetensors.torch import save_file

import export
import model as tiny
import quant
import sample
import tokens


def read_ids(path):
    """(ids, start of every document and the end of the last one)"""
    with lzma.open(path, "rb") as file:
        n = int(np.frombuffer(file.read(4), "<u4")[0])
        lengths = np.frombuffer(file.read(2 * n), "<u2")
        ids = np.frombuffer(file.read(), "<u2")
    return ids, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def pack_rows(ids, starts, length, seed):
    """Whole documents in random order, laid into rows of length + 1; what does not fit is cut."""
    order = np.random.default_rng(seed).permutation(len(starts) - 1)
    sizes = np.diff(starts)
    rows, row, room = [], [], length + 1
    for i in order:
        take = min(room, sizes[i])
        row.append(ids[starts[i]:starts[i] + take])
        room -= take
        if room == 0:
            rows.append(np.concatenate(row))
            row, room = [], length + 1
    return np.stack(rows)


def held_rows(ids, length, batch):
    """The held-out text in rows of the training shape; labels -100 where there is nothing."""
    n = -(-len(ids) // length)
    n += -n % batch
    x = np.zeros(n * length, np.int64)
    y = np.full(n * length, -100, np.int64)
    x[:len(ids)] = ids
    y[:len(ids) - 1] = ids[1:]
    return x.reshape(-1, batch, length), y.reshape(-1, batch, length)


class Muon:
    """Momentum, made orthogonal by five Newton-Schulz steps; matrices of one shape together.

    The update has the size of an Adam update (0.2 per element), so both use one learning rate.
    """

    def __init__(self, params, momentum=0.95, decay=0.05):
        self.momentum, self.decay = momentum, decay
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.state = {s: torch.zeros(sum(p.numel() for p in ps) // (s[0] * s[1]), *s, device=ps[0].device)
                      for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for shape, params in self.groups.items():
            grad = torch.cat([p.grad.reshape(-1, *shape) for p in params]).float()
            buffer = self.state[shape]
            buffer.lerp_(grad, 1 - self.momentum)
            x = torch.lerp(grad, buffer, self.momentum)
            x = x.bfloat16() if x.is_cuda else x
            flip = shape[0] > shape[1]
            x = x.mT if flip else x
            x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
            for _ in range(5):
                a = x @ x.mT
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
            x = (x.mT if flip else x).float() * (0.2 * max(shape) ** 0.5)
            for p, u in zip(params, x.split([p.numel() // (shape[0] * shape[1]) for p in params])):
                p.mul_(1 - rate * self.decay).add_(u.reshape(p.shape), alpha=-rate)


def split_parameters(model):
    """(for Muon, for Adam with the high rate, for Adam)"""
    muon, tables, rest = [], [], []
    for name, p in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            tables.append(p)
        elif quant.is_matrix(name, p) and not name.endswith(quant.EIGHT_BITS) and "in_proj_a" not in name \
                and "in_proj_b" not in name:
            muon.append(p)
        else:
            rest.append(p)
    return muon, tables, rest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--decay", type=float, default=0.45)
    parser.add_argument("--qat", type=float, default=0.62)
    parser.add_argument("--balance", type=float, default=0.005)
    parser.add_argument("--eval-every", type=float, default=60)
    parser.add_argument("--steps", type=int, default=10 ** 9)
    parser.add_argument("--resume", help="a bf16 checkpoint directory to start from")
    parser.add_argument("--start", type=float, default=0, help="part of the schedule that --resume has behind it")
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    torch.set_float32_matmul_precision("high")
    os.makedirs(args.out, exist_ok=True)
    begin = time.time()

    def say(*words):
        print(f"[{time.time() - begin:7.1f}]", *words, flush=True)

    ids, starts = read_ids(os.path.join(args.data, "train.ids.xz"))
    held, _ = read_ids(os.path.join(args.data, "heldout.ids.xz"))
    say(f"{len(starts) - 1} documents, {len(ids)} tokens; held out {len(held)}")
    model = tiny.build(1, device)
    if args.resume:
        from safetensors.torch import load_file
        export.load_into(model, load_file(os.path.join(args.resume, "model.safetensors")))

    def compare(when):
        try:
            difference = tiny.check(model, torch.from_numpy(held[:512].astype(np.int64))[None].to(device))
        except (RuntimeError, TypeError, ValueError) as problem:  # some kernels refuse float32
            say("not compared:", str(problem)[:200])
            return None
        say(f"{when} training, logits against transformers': relative difference {difference[0]:.2e}, worst {difference[1]:.2e}")
        return difference
    compare("before")
    fast = tiny.Fast(model, torch.bfloat16 if gpu else torch.float32, compiled=gpu)
    muon_params, tables, rest = split_parameters(model)
    muon = Muon(muon_params)
    adam = torch.optim.AdamW([{"params": tables}, {"params": rest}], lr=0.0, betas=(0.9, 0.98), eps=1e-10,
                             weight_decay=0.0, fused=gpu)
    held_x, held_y = held_rows(held, args.length, args.batch)
    held_x, held_y = torch.from_numpy(held_x).to(device), torch.from_numpy(held_y).to(device)

    def held_loss(quantised):
        leaves, total, count = fast.leaves(quantised), 0.0, 0
        for x, y in zip(held_x, held_y):  # with gradients on, so that the compiled graphs are the same
            n = (y >= 0).sum().item()
            total += fast.training_loss(leaves, x, y)[0].item() * n
            count += n
        return total / count

    def show_samples(questions):
        plain = tiny.Fast(model, torch.bfloat16 if gpu else torch.float32)
        leaves = plain.leaves(True)
        for q, thinking, text in sample.answers(lambda x: plain.logits(leaves, x), tokens.load(args.data), questions, device):
            say("SAMPLE", "think" if thinking else "plain", repr(q), "->", repr(text))

    pool = concurrent.futures.ThreadPoolExecutor(1)
    epoch, rows, at = 0, pack_rows(ids, starts, args.length, 0), 0
    following = pool.submit(pack_rows, ids, starts, args.length, 1)
    say(f"rows of {args.length}: {len(rows)} an epoch")
    curve = open(os.path.join(args.out, "curve.csv"), "w", encoding="utf-8")
    curve.write("step,tokens,seconds,rate,loss,balance,quantised\n")
    evals = open(os.path.join(args.out, "heldout.csv"), "w", encoding="utf-8")
    evals.write("step,tokens,seconds,loss_bf16,loss_4bit\n")
    step, mean, recent, next_eval, clock = 0, [], None, args.eval_every, None
    while step < args.steps:
        if clock is None and step == 3:  # compilation is not training time
            if gpu:
                torch.cuda.synchronize()
            clock = time.time()
            say("compiled")
        elapsed = time.time() - clock if clock else 0.0
        progress = args.start + (1 - args.start) * elapsed / args.seconds
        if progress >= 1:
            break
        if at + args.batch > len(rows):
            epoch, rows, at = epoch + 1, following.result(), 0
            following = pool.submit(pack_rows, ids, starts, args.length, epoch + 1)
        batch = torch.from_numpy(rows[at:at + args.batch].astype(np.int64))
        batch = (batch.pin_memory() if gpu else batch).to(device, non_blocking=True)
        at += args.batch
        quantised = progress >= args.qat or step == 1  # step 1: compile that path too
        rate = args.rate * min(1, (step + 1) / 150) * min(1, (1 - progress) / (1 - args.decay))
        leaves = fast.leaves(quantised)
        loss, balance = fast.training_loss(leaves, batch[:, :-1], batch[:, 1:])
        (loss + args.balance * balance).backward()
        for name, p in fast.params.items():
            g = leaves[name].grad
            p.grad = g.float() if g.dtype != p.dtype else g
        muon.step(rate)
        adam.param_groups[0]["lr"], adam.param_groups[1]["lr"] = rate, rate * 0.6
        adam.step()
        mean.append((loss.detach(), balance.detach() if torch.is_tensor(balance) else balance))
        step += 1
        if step % 25 == 0 or step == args.steps:
            recent = torch.stack([torch.stack(m) for m in mean]).mean(0).tolist()
            mean = []
            done = step * args.batch * args.length
            curve.write(f"{step},{done},{elapsed:.1f},{rate:.6f},{recent[0]:.4f},{recent[1]:.4f},{int(quantised)}\n")
            curve.flush()
            if step % 250 == 0 or step == 25:
                speed = done / max(elapsed, 1e-9) / 1e3
                say(f"step {step} epoch {epoch} progress {progress:.3f} loss {recent[0]:.4f} balance {recent[1]:.3f} "
                    f"rate {rate:.5f} {speed:.0f} K tokens/s" + (f" {torch.cuda.max_memory_allocated() / 2**30:.0f} GiB" if gpu else ""))
            if not np.isfinite(recent[0]):
                raise SystemExit("the loss is not finite")
        if elapsed >= next_eval:
            next_eval += args.eval_every
            a, b = held_loss(False), held_loss(True)
            say(f"step {step}: held-out loss {a:.4f}, 4-bit {b:.4f}")
            evals.write(f"{step},{step * args.batch * args.length},{elapsed:.1f},{a:.4f},{b:.4f}\n")
            evals.flush()
            show_samples(sample.QUESTIONS[:3])
            save_file(export.to_bf16(model), os.path.join(args.out, "last.tmp"))
            os.replace(os.path.join(args.out, "last.tmp"), os.path.join(args.out, "last.safetensors"))
    tensors = export.to_bf16(model)
    export.save_bf16(tensors, os.path.join(args.out, "bf16"))
    a, b = held_loss(False), held_loss(True)
    evals.write(f"{step},{step * args.batch * args.length},{args.seconds:.1f},{a:.4f},{b:.4f}\n")
    evals.close()
    say(f"done: {step} steps, {step * args.batch * args.length} tokens, held-out loss {a:.4f}, 4-bit {b:.4f}")
    difference = compare("after")
    with open(os.path.join(args.out, "result.json"), "w", encoding="utf-8") as file:
        json.dump({"steps": step, "tokens": step * args.batch * args.length, "heldout_bf16": a, "heldout_4bit": b,
                   "difference": difference, "seconds": time.time() - begin, "arguments": vars(args)}, file, indent=1)
    show_samples(sample.QUESTIONS)
    say("END")


if __name__ == "__main__":
    main()
