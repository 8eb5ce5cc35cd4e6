import torch, torch.nn as nn, torch.nn.functional as F
from tests.graph.programs import check, compile_eagerly
def test_mlp():
    def f(x, w, b, w2):
        return F.gelu(F.linear(x, w, b)) @ w2
    g = lambda *s: torch.randn(*s, requires_grad=True)
    c = check(f, torch.randn(3, 4), g(5, 4), g(5), g(5, 2))
    print(c.partitioned.forward.graph); print(c.partitioned.backward.graph); print(c.partitioned.binding)
    with torch.no_grad(): check(f, torch.randn(3, 4), g(5, 4), g(5), g(5, 2))
def test_transformer():
    def f(q, k, v, w):
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = F.layer_norm(x, (8,), w)
        return torch.softmax(x, -1).sum()
    g = lambda *s: torch.randn(*s, requires_grad=True)
    c = check(f, g(2, 3, 5, 8), g(2, 3, 5, 8), g(2, 3, 5, 8), g(8))
    print(c.partitioned.forward.graph); print(c.partitioned.backward.graph)
