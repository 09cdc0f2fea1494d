# SPDX-License-Identifier: Apache-2.0
"""libpurr through ctypes: what a benchmark needs of purr.h. The structs are held against tests/abi/layout.def by
tests/program/test_bench.sh."""
import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p

BF16, FP32, INT64 = 1, 2, 4


class Struct(ctypes.Structure):
    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


def fields(lines, **types):
    """'a b' of one type and so on, in the order of purr.h."""
    kinds = {"u32": c_uint32, "i32": c_int32, "i64": c_int64, "u64": c_uint64, "f32": c_float, "pointer": c_void_p, **types}
    result = [("struct_size", c_uint32)]
    for line in lines.strip().splitlines():
        kind, *names = line.split()
        result += [(name, kinds[kind]) for name in names]
    return result


class purr_error_t(Struct):
    _fields_ = fields("i32 status native_code rank line column\ntext message", text=c_char * 512)


class purr_counters_t(Struct):
    _fields_ = fields("""
        u32 reserved
        u64 num_forward_calls num_backward_calls num_rows num_timeouts num_bad_routes dispatch_bytes combine_bytes
        u64 host_bytes host_bytes_peak device_bytes device_bytes_peak num_launches""")


class purr_layer_desc_t(Struct):
    _fields_ = fields("""
        i32 precision
        i64 hidden_size intermediate_size num_experts top_k max_tokens shared_intermediate_size
        i32 shared_gate backend
        f32 swiglu_limit
        i32 num_ranks
        i64 minibatch_rows macrobatch_rows num_comm_sms activation_memory timeout_ms
        i32 mxfp8_scale_rule mxfp8_activation_granularity mxfp8_weight_granularity reserved""")


class purr_tensor_t(Struct):
    _fields_ = fields("""
        i32 dtype num_dims reserved
        pointer data pointers
        four shape stride
        pointer scales""", four=c_int64 * 4)


class purr_plan_desc_t(Struct):
    _fields_ = fields("i32 num_sms num_ranks backend precision device\ni64 max_tokens")


class purr_weights_desc_t(Struct):
    _fields_ = fields("""
        u32 reserved
        tensor gate_up gate up down shared_gate shared_up shared_down shared_expert_gate""", tensor=POINTER(purr_tensor_t))


class purr_forward_args_t(Struct):
    _fields_ = fields("""
        u32 reserved
        pointer weights
        tensor x topk_ids topk_weights output
        pointer schedule saved result stream trace""", tensor=POINTER(purr_tensor_t))


STRUCTS = [purr_error_t, purr_counters_t, purr_layer_desc_t, purr_tensor_t, purr_plan_desc_t, purr_weights_desc_t,
           purr_forward_args_t]


def tensor(dtype, address, shape):
    """A contiguous tensor; None stays None."""
    if address is None:
        return None
    return purr_tensor_t(dtype=dtype, num_dims=len(shape), data=address, shape=(c_int64 * 4)(*shape))


class Library:
    """Opens libpurr.so and a context. Every call that fails raises its sentence."""

    def __init__(self, path):
        self.purr = ctypes.CDLL(path)
        self.purr.purr_status_name.restype = c_char_p
        self.context = c_void_p()
        self.call("purr_context_create", None, ctypes.byref(self.context))

    def call(self, name, *arguments):
        error = purr_error_t()
        status = getattr(self.purr, name)(*arguments, ctypes.byref(error))
        if status != 0:
            raise RuntimeError(f"{name}: {error.message.decode()} ({self.purr.purr_status_name(status).decode()})")

    def create(self, name, *arguments):
        handle = c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def num_launches(self):
        counters = purr_counters_t()
        self.call("purr_context_query_counters", self.context, ctypes.byref(counters))
        return counters.num_launches


class Layer:
    """A planned layer of one rank with its weights (purr_tensor_t or None by their names in purr_weights_desc_t)."""

    def __init__(self, library, weights, **description):
        self.library = library
        self.kept = {name: t for name, t in weights.items() if t is not None}
        self.config = library.create("purr_config_create", library.context,
                                     ctypes.byref(purr_layer_desc_t(**description)))
        self.plan = library.create("purr_plan_create", library.context, self.config, None)
        pointers = {name: ctypes.pointer(t) for name, t in self.kept.items()}
        self.weights = library.create("purr_weights_create", self.plan,
                                      ctypes.byref(purr_weights_desc_t(**pointers)))
        self.workspace = library.create("purr_workspace_create", self.plan, None, None)

    def forward(self, x, topk_ids, topk_weights, output, stream):
        arguments = purr_forward_args_t(
            weights=self.weights, x=ctypes.pointer(x), topk_ids=ctypes.pointer(topk_ids),
            topk_weights=ctypes.pointer(topk_weights), output=ctypes.pointer(output), stream=stream)
        self.library.call("purr_forward", self.plan, self.workspace, ctypes.byref(arguments))

    def close(self):
        for kind in ("workspace", "weights", "plan", "config"):
            getattr(self.library.purr, f"purr_{kind}_destroy")(getattr(self, kind))
