"""EAP, EAP-IG and path patching on transformers' GPT-2, by hooks and autograd alone: nothing of Clearhead is used."""

import torch


class Hooked:
    """A GPT-2 and what it computed for one batch: inputs of norms, queries-keys-values, and what every sender sent."""

    def __init__(self, model, ids=None, embedded=None):
        self.model, self.kept, handles = model, {}, []
        self.heads, self.width = model.config.n_head, model.config.n_embd
        for number, block in enumerate(model.transformer.h):
            for name, module, side in (
                (f"{number}.ln_1", block.ln_1, 0),
                (f"{number}.qkv", block.attn.c_attn, 1),
                (f"{number}.context", block.attn.c_proj, 0),
                (f"{number}.ln_2", block.ln_2, 0),
                (f"{number}.mlp", block.mlp, 1),
            ):
                handles.append(module.register_forward_hook(self.keep(name, side)))
        handles.append(model.transformer.ln_f.register_forward_hook(self.keep("ln_f", 0)))
        if embedded is None:
            embedded = model.transformer.wte(ids)
        self.logits = model(inputs_embeds=embedded).logits
        for handle in handles:
            handle.remove()
        self.senders = {"token": embedded, "position": model.transformer.wpe.weight[: embedded.shape[1]]}
        for number, block in enumerate(model.transformer.h):
            context = self.kept[f"{number}.context"].unflatten(-1, (self.heads, -1))
            weight = block.attn.c_proj.weight.unflatten(0, (self.heads, -1))
            for head in range(self.heads):
                self.senders[f"{number}.head.{head}"] = context[:, :, head] @ weight[head]
            self.senders[f"{number}.mlp"] = self.kept[f"{number}.mlp"]

    def keep(self, name, side):
        def hook(module, inputs, output):
            self.kept[name] = output if side else inputs[0]

        return hook

    def gradients_at_inputs(self, value):
        """Return the gradient before the norm of each receiver: of queries, keys and values by head, mlps, the end."""
        names = [name for name in self.kept if name.endswith(("qkv", "mlp", "ln_f"))]
        found = dict(zip(names, torch.autograd.grad(value, [self.kept[name] for name in names]), strict=True))
        gradients = {"ln_f": found["ln_f"]}
        for number, block in enumerate(self.model.transformer.h):
            before = self.kept[f"{number}.ln_1"].detach().requires_grad_()
            normed = block.ln_1(before)
            roles = found[f"{number}.qkv"].split(self.width, -1)
            weights = block.attn.c_attn.weight.split(self.width, -1)
            for role, gradient, weight in zip(("query", "key", "value"), roles, weights, strict=True):
                size = self.width // self.heads
                for head in range(self.heads):
                    part = slice(head * size, (head + 1) * size)
                    at_normed = gradient[..., part] @ weight[:, part].T
                    [at_input] = torch.autograd.grad(normed, before, at_normed, retain_graph=True)
                    gradients[f"{number}.{role}.{head}"] = at_input
            before = self.kept[f"{number}.ln_2"].detach().requires_grad_()
            out = block.mlp(block.ln_2(before))
            [gradients[f"{number}.mlp"]] = torch.autograd.grad(out, before, found[f"{number}.mlp"])
        return gradients


def receiver_name(name):
    """Return their name of one of our receivers."""
    if name == "decoder.output":
        return "ln_f"
    _, block, *rest = name.split(".")
    return f"{block}.mlp" if rest == ["feed_forward"] else f"{block}.{rest[1]}.{rest[2]}"


def sender_name(name):
    _, block, *rest = name.split(".")
    if block == "embedding":
        return rest[0]
    return f"{block}.mlp" if rest == ["feed_forward"] else f"{block}.head.{rest[2]}"


def scores(model, edges, clean_ids, other_ids, metric, *, shares):
    """Return EAP's scores for our edges, the gradients averaged over these shares of the clean embedding."""
    clean, other = Hooked(model, clean_ids), Hooked(model, other_ids)
    total = 0
    for share in shares:
        start = clean.senders["token"] * share + other.senders["token"] * (1 - share)
        moved = Hooked(model, embedded=start.detach().requires_grad_())
        gradients = moved.gradients_at_inputs(metric(moved.logits))
        found = []
        for edge in edges:
            if edge.sender == "decoder.constant":
                found.append(torch.zeros(len(clean_ids), dtype=start.dtype))
                continue
            name = sender_name(edge.sender)
            change = (other.senders[name] - clean.senders[name]) * gradients[receiver_name(edge.receiver)]
            found.append(change.expand_as(start).sum((1, 2)))
        total = total + torch.stack(found, -1) / len(shares)
    return total.detach()


def patch_head_to_output(model, clean_ids, other_ids, block, head):
    """Return the logits where one head sends to the output alone what it sends in the other text."""
    clean, other = Hooked(model, clean_ids), Hooked(model, other_ids)
    name = f"{block}.head.{head}"
    at_end = clean.kept["ln_f"] - clean.senders[name] + other.senders[name]
    return model.lm_head(model.transformer.ln_f(at_end)).detach()


def patch_mlp_to_head_value(model, clean_ids, other_ids, block, head):
    """Return the logits where an mlp sends to the value of one head of the next block what it sends elsewhere."""
    clean, other = Hooked(model, clean_ids), Hooked(model, other_ids)
    later = model.transformer.h[block + 1]
    size = clean.width // clean.heads
    part = slice(2 * clean.width + head * size, 2 * clean.width + (head + 1) * size)

    def hook(module, inputs, output):
        change = other.senders[f"{block}.mlp"] - clean.senders[f"{block}.mlp"]
        changed = later.ln_1(clean.kept[f"{block + 1}.ln_1"] + change)
        output = output.clone()
        output[..., part] = changed @ module.weight[:, part] + module.bias[part]
        return output

    handle = later.attn.c_attn.register_forward_hook(hook)
    logits = model(clean_ids).logits
    handle.remove()
    return logits.detach()
