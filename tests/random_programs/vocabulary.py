"""What random programs are made of: templates of expressions, statements and heads of blocks.

Two vocabularies: of operators (every kind of tensor operation, for the stages behind capture) and of the language (cheap
tensor operations in every construct of Python, for capture). Values are multiples of a quarter, so that most arithmetic is
exact; results of inexact operators are called `y...`, and nothing discontinuous is computed from those.

Holes: {t} a tensor, {e} an exact one, {w} a float one, {b} an exact integer or bool one, and {t0}, {e0}, {w0} the same
again; {d} a dimension of the last tensor, {s} an index, {dt} a dtype, {i} an integer, {n} a small positive one, {f} a float; {l} a
list, {table} a dictionary, {o} a box, {record} a record, {g} a started generator, {function} a function of one tensor, {k} a key;
{T} a tensor expression, {I} an integer expression, {c} a condition, {new} a name not yet used. This module must not run anything.
"""

from __future__ import annotations

SEPARATOR = ";;"


def templates(text: str) -> list[str]:
    """The templates of a table."""
    return [entry.strip() for entry in text.split(SEPARATOR) if entry.strip()]


EXACT = templates("""
{e} + {e} ;; {e} - {e} ;; {e} * {e} ;; {e} * {i} ;; {e} + {f} ;; {i} - {e} ;; -{e} ;; abs({e}) ;; {e} > {e} ;;
{e} == {e} ;; {e} != {i} ;; {e} <= {f} ;; {b} & {b} ;; {b} | {b} ;; {b} ^ {b} ;; ~{b} ;; {b} << {n} ;;
{b} >> {n} ;; {e} // {n} ;; {e} % {n} ;; {e} // -{n} ;; {e} % -{n} ;; torch.fmod({e}, {n}) ;;
torch.remainder({e}, -{n}) ;; {e} ** 2 ;; {b} ** {n} ;; {e}.sum({d}) ;; {e}.sum() ;; {e}.sum({d}, keepdim=True) ;;
{e}.amax({d}) ;; {e}.max({d})[0] ;; {e}.max({d})[1] ;; {e}.min({d}).indices ;; {e}.argmax() ;; {e}.argmin({d}) ;;
{e}.cumsum({d}) ;; {e}.sort({d}, stable=True)[0] ;; {e}.sort({d}, stable=True, descending=True)[1] ;;
{e}.argsort({d}, stable=True) ;; {e}.topk(min({n}, {e0}.shape[-1]))[0] if {e0}.dim() else {e0} ;; {e}.any({d}) ;;
{e}.all() ;; {e}.any() ;; torch.where({e} > 0, {e}, {e}) ;; torch.where({e} > {i}, {e}, {f}) ;;
{e}.clamp({i}, {i} + 2) ;; {e}.clamp(min={f}) ;; torch.maximum({e}, {e}) ;; torch.minimum({e}, {e}) ;;
{e}.relu() ;; {e}.sign() ;; {e}.round() ;; {e}.floor() ;; {e}.trunc() ;; {e}.frac() ;; {e}.to({dt}) ;;
{e}.float() ;; {e}.long() ;; {e}.bool() ;; {e}.type_as({e}) ;; {e}.double() ;;
{e}.gather({d}, {b} % {e0}.shape[0]) ;; {e}.index_select({d}, {b}.flatten().long() % 2) ;;
torch.cat([{e}, {e}], {d}) ;; torch.cat([{e}, {e}]) ;; torch.stack([{e}, {e}], {d}) ;; torch.zeros_like({e}) ;;
torch.full_like({e}, {i}) ;; torch.ones(2, {n}) ;; torch.arange({n}) ;; torch.tensor([{i}, {i}, {f}]) ;;
torch.tensor({i}) ;; torch.full(({n},), {f}) ;; torch.zeros({e0}.shape[:1]) ;;
torch.arange({e0}.numel()).reshape({e0}.shape) ;; {e}.flip({d}) ;; {e}.roll({n}, {d}) ;; {e}.tril() ;;
{e}.triu({i}) ;; torch.nan_to_num({e} / 0, nan=1.0) ;; torch.isnan({e} / {e}) ;; {e}.masked_fill({e} > {i}, {f}) ;;
{e}.scatter({d}, {b}.long() % 2, {e}) ;; {e}.scatter_add({d}, {b}.long() % 2, {e}) ;;
{e}.index_add({d}, torch.tensor([0, 0]), {e}) ;; {e}[{b} > {i}] ;; {e}.nonzero() ;; {e}.unique() ;;
torch.bincount({b}.flatten().abs().long() % 5) ;; {e}.prod({d}) ;; {e}.cummax({d})[0] ;; {e}.cummax({d})[1] ;;
{e}.logical_not() ;; {e}.diff() ;; torch.searchsorted({e}.flatten().sort()[0], {e}) ;;
torch.bucketize({e}, torch.tensor([-1.0, 0.0, 1.5])) ;; {e}.median() ;; torch.logical_xor({e}, {e}) ;;
torch.sub({e}, {e}, alpha={i}) ;; torch.add({e}, {e}, alpha={n}) ;; {e}.repeat(2, 1) ;;
{e}.repeat_interleave({n}, {d}) ;; torch.nn.functional.pad({e}, (1, {n}), value={f}) ;;
torch.outer({e}.flatten(), {e}.flatten()) ;; {e}.count_nonzero({d}) ;; {e}.new_zeros({n}) ;;
{e}.new_tensor([{i}]) ;; torch.heaviside({e}, {e}) ;; torch.copysign({e}, {e}) ;;
{e}.index_fill({d}, torch.tensor([0]), {i}) ;; torch.isin({e}, {e}) ;; torch.lerp({w}, {w}, 0.5) ;;
torch.addcmul({w}, {w}, {w}, value=2) ;; {e}.clone() ;; {e}.contiguous() ;;
{e}.scatter_reduce({d}, {b}.long() % 2, {e}, "amax") ;; torch.where({e} > 0) ;; {e}.bitwise_not() ;;
torch.bitwise_and({b}, {i}) ;; torch.tril_indices({n}, 2) ;; torch.tensor([{e0}.shape, {e0}.stride()]) ;;
torch.eq({e}, {e}).sum() ;; {e}.aminmax()[1] ;; torch.meshgrid({e}.flatten(), {e}.flatten(), indexing="ij")[1] ;;
{e}.new_full(({n}, 2), {f}) ;; {e}.to(torch.uint8) ;; ({e} > {i}) + {e} ;; ({e} > {i}) * {f} ;;
torch.einsum("i,j->ij", {e}.flatten(), {e}.flatten()) ;; torch.stack([{e}.sum(), {e}.max()]) ;;
torch.atleast_2d({e}) ;; torch.block_diag({e}, {e}) ;; torch.tile({e}, (2,)) ;; torch.rot90({e}) ;;
torch.hypot({w}*0, {w}) ;; torch.gcd({b}, {b}) ;; torch.lcm({b}, {b}) ;; torch.floor_divide({e}, {f}) ;;
{e} // {f} ;; {f} // {e} ;; {e} % {f} ;; {f} % {e} ;; {n} ** {b} ;; {i} // ({e} * 0 + {n}) ;;
torch.true_divide({b}, 4) ;; torch.signbit({e}) ;; {e}.cumprod({d})
""")

VIEWS = templates("""
{t}.t() ;; {t}.transpose({d}, -1) ;; {t}.T ;; {t}.mT ;; {t}[{s}] ;; {t}[{s}, {s}] ;; {t}.view(-1) ;;
{t}.reshape(-1) ;; {t}.flatten() ;; {t}.unsqueeze({d}) ;; {t}.squeeze() ;; {t}.squeeze({d}) ;;
{t}.expand(2, *{t0}.shape) ;; {t}.detach() ;; {t}.narrow({d}, 0, 1) ;; {t}.select({d}, {i}) ;;
{t}.chunk(2, {d})[-1] ;; {t}.split({n}, {d})[0] ;; {t}.unbind({d})[0] ;; {t}.diagonal() ;; {t}[...] ;; {t}[None] ;;
{t}.permute(*reversed(range({t0}.dim()))) ;; {t}.as_strided((2,), (1,)) ;; {t}.unfold({d}, 1, 1) ;;
{t}.view_as({t}) ;; {t}.movedim(0, -1) ;; {t}.reshape(-1, 2) ;; {t}.data ;; {t}.contiguous() ;;
{t}.to({t0}.dtype) ;; {t}[..., ::2] ;; {t}.view(torch.int32) ;; {t}.real ;; {t}.swapaxes(0, -1) ;;
{t}.unflatten({d}, (-1, 1)) ;; {t}.view({t0}.shape) ;; {t}.as_strided({t0}.shape, {t0}.stride()) ;;
torch.broadcast_to({t}, (2, *{t0}.shape)) ;; {t}.ravel() ;; {t}.positive()
""")

INEXACT = templates("""
{w}.exp() ;; {w}.sin() ;; {w} / {t} ;; {w}.mean() ;; {w}.mean({d}) ;; {w}.softmax({d}) ;; {w}.log_softmax({d}) ;;
{w}.tanh() ;; {w}.sigmoid() ;; ({w} * {w}).sqrt() ;; {w}.abs().log() ;; {w}.logsumexp({d}) ;; {w}.var({d}) ;;
{w}.std() ;; {w}.norm() ;; {w}.norm(1, {d}) ;; {w}.pow(0.5) ;; torch.nn.functional.gelu({w}) ;;
torch.nn.functional.silu({w}) ;; {t} * {w} ;; {t} + {w} ;; {w}.sum({d}) ;; {w} @ {w} ;;
torch.nn.functional.layer_norm({w}, {w0}.shape[-1:]) ;; torch.atan2({w}, {w}) ;; torch.logaddexp({w}, {w}) ;;
{w}.rsqrt() ;; torch.where({e} > 0, {w}, {w}.exp()) ;; {w}.cumsum({d}) ;; torch.nn.functional.softplus({w}) ;;
{b} / {n} ;; {w}.erf() ;; torch.special.xlogy({w}, {w}) ;; {w} / {n} ;; 1 / {w}
""")

WRITES = templates("""
{t} += {e} ;; {t} *= {i} ;; {t} -= {f} ;; {t}[{s}] = {f} ;; {t}[{s}] = {e} ;; {t}[{s}] += {e} ;;
{t}[{s}, {s}] = {i} ;; {t}.add_({e}) ;; {t}.mul_(2) ;; {t}.zero_() ;; {t}.fill_({i}) ;; {t}.copy_({e}) ;;
{t}.clamp_({i}, 3) ;; {t}[{e} > {i}] = {f} ;; {t}[{t0} > 0] *= 2 ;; {t}.masked_fill_({e} > 0, {i}) ;;
{t}.scatter_({d}, {b}.long() % 2, {i}) ;; {t}.index_add_({d}, torch.tensor([0, 0]), {e}) ;;
{t}[torch.tensor([0, -1])] = {e} ;; {t}[torch.tensor([0, 0])] += 1 ;; {t}.neg_() ;; {t}.abs_() ;; {t}.t_() ;;
{t}.unsqueeze_(0) ;; {t}.squeeze_() ;; {t}.index_put_((torch.tensor([0, 0]),), {e}, accumulate=True) ;;
{t}.transpose_(0, -1) ;; {t} //= {n} ;; {t} |= {b} ;; {t} <<= 1 ;; {t}.round_() ;; {t}.relu_() ;;
torch.add({e}, {e}, out={t}) ;; torch.mul({e}, 2, out={t}) ;; torch.cumsum({e}, {d}, out={t}) ;;
{t}.sub_({t}, alpha=2) ;; {t}.detach().mul_(2) ;; {t}.data.add_(1) ;; {t}.view(-1)[0] = {i} ;;
{t}.flatten()[0] = {i} ;; {t}.diagonal().fill_({i}) ;; {t}.index_fill_({d}, torch.tensor([0]), {i}) ;;
{t}.index_copy_({d}, torch.tensor([0]), {e}) ;; {t}.cumsum_({d}) ;; {t}.requires_grad_(False) ;; {t}.set_({e}) ;;
{t}.swapaxes_(0, -1) ;; {t}[..., 0].add_({e}) ;; {t}[None] = {i} ;; {t}.masked_scatter_({e} > 0, {e}) ;;
{t}.tril_() ;; {t}.detach_() ;; {t}.resize_({n}) ;; {t}.sort()[0][0] = {i} ;; {t}.lerp_({e}, 0.5) ;;
{t}.addcmul_({e}, {e}) ;; {t}.fill_diagonal_({i}) ;; {t}.bitwise_not_() ;; {t}.logical_not_() ;;
{t}.remainder_({n}) ;; {t}.eq_({e}) ;; torch.sum({e}, {d}, out={t}) ;; torch.where({e} > 0, {e}, {e}, out={t}) ;;
torch.cat([{e}, {e}], out={t}) ;; torch.stack([{e}, {e}], out={t}) ;; {t}.put_(torch.tensor([0]), {e}) ;;
{t}[:, 0], {t}[0] = {i}, {f} ;; {t}.expand_as({t}).add_(1) ;; {t}.div_({n}, rounding_mode="floor") ;;
{t}.pow_(2) ;; torch._foreach_add_([{t}, {t}], 1) ;; {t}.select({d}, 0).copy_({e}) ;; {t}.grad = None ;;
{t}.swapdims_(0, 1) ;; {t}.unflatten(0, (1, -1)).add_(1) ;; {t}.scatter_reduce_({d}, {b}.long() % 2, {e}, "sum")
""")

PYTHON = templates("""
log.append({t}.shape) ;; log.append({t}) ;; log.append({t}.dtype) ;;
print({t}.shape[0] if {t0}.dim() else 'scalar') ;; log.append({e}.sum().item()) ;; log.append(float({e}.sum())) ;;
{l}.append({t}) ;; {l}.extend([{t}, {t}]) ;; {l}[0] = {t} ;; {l}.pop() ;; {l}.insert(0, {t}) ;; {l}.reverse() ;;
{l} += [{t}] ;; {l}.sort(key=lambda z: z.numel()) ;; log.append({t} is {t}) ;;
log.append(any(z is {t} for z in {l})) ;; log.append({l}[0].is_contiguous()) ;; log.append({t}._version) ;;
log.append(len({l})) ;; {l}[-1].add_(1) ;; {l}[:1] = [] ;; del {l}[0] ;; log.append({t}.tolist()) ;;
log.append({t}.stride()) ;; log.append(f"{t} {{{t0}.shape}}") ;; print({t}.sum()) ;; log.append(bool({e}.any())) ;;
log.append({t}.is_contiguous()) ;; log.append({t}.requires_grad) ;;
log.append(isinstance({t}, torch.FloatTensor)) ;; log.append({t}.is_leaf) ;; log.append({t}.storage_offset()) ;;
log.append(repr({e})) ;; log.append(str({t}.dtype)) ;; log.append(int({e}.max())) ;; {l}[0][...] = {i} ;;
weak = weakref.ref({t}); log.append(weak() is {t}) ;; log.append(divmod({i}, {n}))
""")

VALUES = templates("""
sum({l}) ;; max({l}, key=lambda z: z.numel()) ;; {l}[{i}] ;; [z * 2 for z in {l}][0] ;;
next(z for z in {l} if z.numel()) ;; functools.reduce(operator.add, {l}) ;; {l}[0] if {e}.sum() > 0 else {l}[-1] ;;
(lambda z, k={t}: z + k)({t}) ;; list(zip({l}, {l}))[0][1] ;; dict(enumerate({l}))[0] ;;
sum(z.sum() for z in {l}) ;; torch.stack([z.sum() for z in {l}]) ;; torch.as_tensor({t}) ;;
torch.tensor([z.numel() for z in {l}]) ;; torch.tensor({t}.tolist()) ;; Pair({t}, {t}).left ;;
Pair({t}, {t})._replace(left={t})[0] ;; [*{l}, {t}][-1] ;; ({t} if {t0}.dim() > 1 else {t}.unsqueeze(0)) ;;
{e}[{e0}.numel() // 2:] ;; min([{t}, {t}], key=len) ;; sorted({l}, key=lambda z: z.dim())[0] ;;
list(itertools.accumulate({l}))[-1] ;; list(map(torch.neg, {l}))[0] ;; {l}[::-1][0] ;; copy.copy({t}) ;;
copy.deepcopy({t}) ;; getattr(torch, "abs")({t}) ;; operator.itemgetter(0)({l}) ;; Pair(*[{t}, {t}]).right
""")

CONDITIONS = templates("""
{e}.sum() > 0 ;; {t}.dim() > 1 ;; {t}.shape[0] > 2 ;; n > {i} ;; {e}.any() ;; len({l}) > 1 ;; {t} is {t} ;;
{t}.requires_grad ;; {t}.is_contiguous() ;; flag ;; {t}.numel() == 0 ;; not flag ;; {e}.max() < 3 ;;
{t}.dtype.is_floating_point ;; len(log) > 2 ;; {e}[0] == 1 ;; x0.shape == x1.shape
""")

TENSORS = templates("""
{t} ;; {t} ;; {t} * {n} ;; {t} + {t} ;; {t} - {f} ;; {t}.sum(-1) ;; {t}.relu() ;; -{t} ;; {t}[0] ;; {t}.max() ;; torch.stack([{t}, {t}]) ;;
{t}.reshape(-1) ;; {t}.clone() ;; torch.where({t} > 0, {t}, {i}) ;; {t}.unsqueeze(0) ;; {t}.detach() ;; {t}.sum() ;; torch.zeros_like({t}) ;;
torch.ones({n}) ;; {t}.new_full((2,), {i}) ;; torch.cat([{t}.flatten(), {t}.flatten()]) ;; {t} * {t} ;; {t}.transpose(0, -1) ;; {t}[..., :1] ;;
torch.add({t}, {I}) ;; {t}.abs() if {c} else {t} ;; {t} * {I} ;; torch.tensor([{I}, {i}]) ;; torch.full(({n},), {f}) ;; {t}.view({t0}.shape)
""")

EXPRESSIONS = templates("""
{o}.value ;; {o}.double ;; {o}.lazy ;; {o}({T}) ;; {o}({t}, k={I}) ;; Box.joined({t}, {t}) ;; {function}({T}) ;; {function}({function}({t})) ;; scaled({t}) ;;
scaled({t}, k={I}) ;; counted({t}) ;; recurse({t}, {n}) ;; guarded({t}) ;; guarded({t}, {n}) ;; helper({t}, {t}) ;; picked({t}, a={t}, b={T}, z=1) ;;
picked(**{{"a": {t}, "b": {t}}}) ;; {l}[{i}] ;; {l}[-1] ;; sum({l}) ;; {table}[{k}] ;; {table}.get({k}, {t}) ;; next(iter({table}.values())) ;;
[z * {n} for z in {l}][-1] ;; next(z for z in {l} if z.dim() >= 0) ;; functools.reduce(operator.add, {l}) ;; sum(z.sum() for z in {l}) ;;
{l}[0] if {c} else {l}[-1] ;; (lambda z, k={t}: z + k)({T}) ;; dict(zip("ab", {l}))["a"] ;; sum(gen({l})) ;; list(gen({l}, {n}))[-1] ;; list(chained({l}))[-1] ;;
first_large({l}, {n})[1] ;; block({T}) ;; block.weight * {I} ;; holder.value ;; holder.items[0] ;; {record}.value ;; {record}.grown().value ;; Mode.ADD.apply({t}, {t}) ;;
Mode("mul").apply({t}, 2) ;; max({l}, key=lambda z: z.numel()) ;; list(map({function}, {l}))[0] ;; sum(z for z in Steps({t}, {n})) ;; copy.copy({o}).value ;;
copy.deepcopy({o}).value ;; Pair({t}, {T}).right ;; Pair({t}, {t})._replace(left={T})[0] ;; ({o} + {t}).value ;; ({t} + {o}.value) ;; [*{l}, {t}][-1] ;;
operator.itemgetter(0)({l}) ;; list(itertools.accumulate({l}))[-1] ;; functools.partial({function}, {T})() ;; ({t} if {t0}.dim() > 1 else {t}.unsqueeze(0)) ;;
getattr({o}, "value") ;; Box.of({t}, {t}).items[0] ;; torch.stack([z.sum() for z in {l}]) ;; list(reversed({l}))[0] ;; min({l}, key=len) ;; {t}.grad if {t0}.grad is not None else {t}
""")

INTEGERS = templates("""
{n} ;; {i} ;; n ;; len({l}) ;; {t}.dim() ;; {t}.shape[-1] ;; {t}.numel() ;; len({table}) ;; len({o}) ;; state["n"] ;; {o}.missing_number ;; Box.made ;; n + {n} ;; n % 2 ;;
{o}.scale ;; {record}.count ;; block.calls ;; TOTALS["n"] ;; int({t}.sum()) ;; round({t}.max().item()) ;; counter() ;; len(LOG) % 3 ;; max(n, {i}) ;; n // {n} ;; -n ;; n * {t}.shape[0]
""")

EFFECTS = templates("""
{l}.append({T}) ;; {l}[{i}] = {T} ;; {l}[-1] = {t} ;; {l}.pop() ;; {l}.insert({i}, {t}) ;; {l} += [{T}] ;; {l}.extend(z + 1 for z in {l}[:2]) ;; del {l}[0] ;; {l}.reverse() ;;
{l}.sort(key=lambda z: z.numel()) ;; {l}[1:] = [{t}, {t}] ;; {l}[-1].add_({n}) ;; {l}[0] *= 2 ;; {l}[:], n = [{t}], n + 1 ;; {l}.remove({l}[0]) ;; {l}[0], {l}[-1] = {l}[-1], {l}[0] ;;
{table}[{k}] = {T} ;; {table}.setdefault({k}, {t}) ;; {table}.update(p={t}, q={T}) ;; {table}.pop({k}, None) ;; del {table}[{k}] ;; {table} |= {{"u": {t}}} ;; {table}[{k}] += {n} ;; {table}.pop({k}) ;;
{t}.add_({n}) ;; {t}.mul_(2) ;; {t}[0] = {i} ;; {t} += {n} ;; {t} *= {I} ;; {t}[..., -1] -= 1 ;; {t}.copy_({T}) ;; {t}.zero_() ;; {t}.detach().add_(1) ;;
{o}.value = {T} ;; {o}.value += {n} ;; {o}.double = {t} ;; {o}.scale = {I} ;; {o}.items.append({t}) ;; {o}[0] = {T} ;; {o}.extra = {T} ;; del {o}.value ;; {o} += {t} ;; {o}.items = {l} ;;
setattr({o}, "at" + str({n}), {t}) ;; type({o}).made += 1 ;; {o}._reads = {I} ;; {record}.count += 1 ;; {record}.parts.append({T}) ;; {record}.value = {t} ;; holder.value = {T} ;; vars({o})["value"] = {t} ;;
state["n"] += {n} ;; state["last"] = {t} ;; state.setdefault("kept", {t}) ;; n += 1 ;; n = {I} ;; TOTALS["n"] += 1 ;; LOG.append({t}.shape) ;; log.append({T}) ;; log.append({I}) ;; log.append({c}) ;; counter() ;;
scaled.calls += 1 ;; block.seen += 1 ;; block.calls += 1 ;; block.train({c}) ;; block.seen = block.seen * 2 ;; block.extra = {T} ;; next({g}) ;; log.append(next({g}, {i})) ;; {g}.send({i}) ;; {g}.close() ;;
log.append(list({g})) ;; log.append({t} is {t}) ;; log.append({o} in {{{o}: 1}}) ;; log.append(sorted([{o}, {o}])[0] is {o}) ;; log.append({t} in {o}) ;; log.append(hasattr({o}, "extra")) ;;
log.append(getattr({o}, "extra", {i})) ;; log.append(f"{{len({l})}} {{{I}:>3}} {{{t}.shape!r}}") ;; log.append([*{o}]) ;; log.append(list({table})) ;; log.append(list({table}.items())) ;; log.append(vars({o}).keys() - {{"value"}}) ;;
log.append({o} == {o}) ;; log.append(any(z is {t} for z in {l})) ;; log.append(isinstance({o}, Crate)) ;; log.append(Frozen({I}) < Frozen({I})) ;; log.append({record}) ;; log.append(dataclasses.asdict(Frozen({I}))) ;;
log.append({t}._version) ;; log.append({t}.tolist()) ;; log.append({{z.dim() for z in {l}}}) ;; log.append({{name: z * 2 for name, z in {table}.items()}}) ;; log.append([(a, b) for a in range({n}) for b in {l} if a != 1]) ;;
log.append((n := n + {n})) ;; log.append(list(itertools.chain({l}, {table}.values()))) ;; log.append(list(zip({l}, itertools.count({i})))) ;; log.append(collections.Counter(z.dim() for z in {l})) ;; log.append({function}) ;;
print({t}.sum().item()) ;; print(n) ;; log.append(float({t}.sum())) ;; log.append({t}.max().item()) ;; print(f"{{{t}.mean():.2f}}") ;; assert {t}.numel() < 5000, n ;; print({t}) ;; log.append(bool({t}.sum() > {i})) ;; print(len({l}))
""")

NEW_OBJECTS = templates("""
list({l}) ;; {l} ;; [{t}, {T}] ;; [{t}] * 2 ;; {l}[::-1] ;; [z + {n} for z in {l}] ;; [z for z in {l} if z.dim() > 0] ;; sorted({l}, key=lambda z: z.numel()) ;; list({table}.values()) ;; list(map({function}, {l})) ;; {o}.items ;;
{{"a": {t}, "b": {T}}} ;; dict({table}) ;; {table} ;; {{name: z + 1 for name, z in {table}.items()}} ;; {{**{table}, "z": {t}}} ;; {table}.copy() ;; collections.OrderedDict(a={t}) ;; collections.defaultdict(list, a={t}) ;;
Box({T}) ;; Box({t}, {t}, {t}) ;; Crate({t}) ;; {o} ;; Crate.of({t}, {T}) ;; copy.copy({o}) ;; {o} + {t} ;; {t} + {o} ;; Record({T}) ;; Record({t}, {n}, {l}) ;; {record}.grown({n}) ;; {record} ;;
gen({l}) ;; gen([{t}, {t}], {n}) ;; chained({l}) ;; (z * {n} for z in {l}) ;; iter(list({l})) ;; lambda z: z * {n} + {t} ;; lambda z, k={t}: z + k ;; functools.partial(helper, {t}) ;; scaled ;; {o}.__call__ ;; wrapped(lambda z: z - {I}) ;;
{function} ;; functools.partial(scaled, k={I}) ;; block ;; {I} ;; {I} + {I} ;; {t}.shape
""")

BRANCHES = templates("""
{t}.sum() > {i} ;; {t}.dim() > 1 ;; {t}.shape[0] > 2 ;; n > {i} ;; len({l}) > {n} ;; flag ;; not flag ;; {t}.any() ;; {k} in {table} ;; {o} ;; {t} is {t} ;; {t}.requires_grad ;; {I} > {I} ;; isinstance({o}, Crate) ;;
state["n"] % 2 ;; {l} ;; hasattr({o}, "extra") ;; {o}.scale == {n} ;; {l}[-1] is {t} ;; n in (1, {n}) ;; {t}.numel() == 0 ;; {t}.max() < 3 and flag ;; flag or {t}.min() > 0 ;; not {table} ;; 0 < n < {n} ;; {o} == {o} ;; "last" in state
""")

# The head of a block, what its body begins with, and what follows it; `/` ends a line, `>` is one more level.
BLOCKS = templates("""
if {c}: ;; if {c}: ;; if {c}:|/else:/>{effect} ;; if {c}:|/elif {c}:/>{effect}/else:/>{effect} ;; for {new} in range({n}): ;; for {new} in {l}[:3]: ;; for {new}, {new} in enumerate({l}[:3]): ;; for {new} in list({l}): ;;
for {new}, {new} in {table}.items(): ;; for {new} in gen({l}, {n}): ;; for {new} in {t}: ;; for {new} in {o}: ;; for {new} in Steps({t}, {n}): ;; for {new}, {new} in zip({l}, {l}[1:]): ;; for {new} in chained({l}): ;;
for {new} in range({n}):|/else:/>{effect} ;; while state["n"] < {n}:|state["n"] += 1 ;; while n < {n}:|n += 1 ;; with torch.no_grad(): ;; with opened(log): ;; with opened(log, True) as {new}: ;; with {o} as {new}: ;; with {o}, opened(LOG): ;;
with contextlib.suppress(Odd, KeyError): ;; with contextlib.ExitStack() as stack:|stack.enter_context(opened(log))/stack.callback(log.append, "callback") ;;
try:||/except Odd as error:/>log.append(str(error))/>{effect} ;; try:||/except (KeyError, ValueError, IndexError, Odd) as error:/>log.append(type(error).__name__)/finally:/>{effect} ;;
try:||/except Exception as error:/>log.append(type(error).__name__)/else:/>{effect}/finally:/>log.append("finally") ;; try:||/finally:/>{effect} ;; try:||/except Odd as error:/>{effect}/>log.append(error.payload) ;;
match {I}:/>case 0 | 1:/>>{effect}/>case {n} if flag:/>>{effect}/>case _: ;; match {l}:/>case [only]:/>>log.append(only)/>case [head, *rest]: ;; match {o}:/>case Crate(value=inner):/>>log.append(inner)/>case Box(): ;;
match {table}:/>case {{"a": held, **rest}}:/>>log.append((held, len(rest)))/>case _: ;; for {new} in ({t}, {T}): ;; for {new} in itertools.islice(itertools.cycle({l}), {n}): ;; for {new} in {g}:
""")

# A function defined in the program; the last line is a call of it.
DEFINITIONS = templates("""
def {name}({new}, {new}={t}):|>return {T}|log.append({name}({t})) ;; def {name}({new}, *rest, k={n}, **more):|>log.append((len(rest), sorted(more)))/>return {T}|log.append({name}({t}, {t}, z={i})) ;;
def {name}({new}):|nonlocal n/n += 1|>return {T}|log.append({name}({t})) ;; def {name}({new}):|try:/>log.append(n)/finally:/>counter()|>return {T}|log.append({name}({T})) ;; def {name}({new}={t}):|>return {T}|log.append({name}()) ;;
def {name}({new}, depth=2):|if depth > 0:/>return {name}({new0} + 1, depth - 1)|>return {T}|log.append({name}({t})) ;; @wrapped/def {name}({new}):|>return {T}|log.append({name}({t})) ;; @torch.no_grad()/def {name}({new}):|>return {T}|log.append({name}({t})) ;;
def {name}({new}):|yield {new0}|>yield {T}|log.append(list({name}({t}))) ;; def {name}({new}):|got = yield {new0}/log.append(got)|>yield {T}/>return n|log.append(next({name}({t}))) ;;
@contextlib.contextmanager/def {name}({new}):|try:/>yield {new0} * 2/finally:/>log.append("left")|>log.append(n)|with {name}({t}) as inner: log.append(inner) ;;
class {name}(Box):|def double(self):/>return super().double - 1/double = property(double)/count = {n}|>at_class = {n}|log.append({name}({t}).double)
""")
ENDINGS = templates("""
break ;; continue ;; raise Odd("odd", {t}) ;; raise KeyError({i}) ;; raise ValueError("bad") from KeyError(1) ;; state["absent"] ;; items[99] ;; return {T} ;; return ({t}, {l}) ;; break ;; continue ;; assert n > {n}, n ;;
x0.view(7777) ;; x0 @ torch.ones(77, 2) ;; {o}.absent ;; int("z")
""")
OPERATOR_BLOCKS = templates("""
if {c}: ;; if {c}: ;; for {new} in range({n}): ;; for {new} in {l}: ;; with torch.no_grad(): ;; for {new} in {t}: ;; if not ({c}): ;; for {new}, {new} in zip({l}, {l}): ;; for {new}, {new} in enumerate({l}): ;;
with opened(log): ;; for {new} in gen({l}): ;; with contextlib.suppress(ValueError, RuntimeError, IndexError): ;; while state["n"] < {n}:|state["n"] += 1 ;; try:||/except Exception as error:/>log.append(type(error).__name__) ;;
if {c}:|/else:/>log.append({t}.shape)
""")
