"""Edits a safetensors file: edit.py IN OUT COMMAND..., where a COMMAND is
  drop:NAME           leave a tensor away
  rename:NAME=NEW
  nan:NAME            the first element becomes NaN
  negate:NAME=ROWS    rows of a BF16 matrix, such as 3,7
  id:NAME=INDEX,ID    an I64 element
  rows:N              only the first N rows of every input.*, and of expect.output and the like
  f32:NAME            BF16 is widened to F32
  i32:NAME            I64 is narrowed to I32
  no_metadata         leave the file's metadata away
  split_experts       expect.grad.experts.gate_up_proj and down_proj become one tensor for each expert and matrix
"""
import json
import struct
import sys

SIZES = {"BF16": 2, "F32": 4, "F64": 8, "I32": 4, "I64": 8}
NANS = {"BF16": b"\xc0\x7f", "F32": b"\x00\x00\xc0\x7f"}


def load(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    body = data[8 + length :]
    return metadata, {n: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for n, t in header.items()}


def save(path, metadata, tensors):
    header, body = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)


def split_experts(tensors):
    dtype, (num_experts, rows, columns), data = tensors.pop("expect.grad.experts.gate_up_proj")
    half = rows // 2 * columns * SIZES[dtype]
    for e in range(num_experts):
        for j, name in enumerate(("gate_proj", "up_proj")):
            part = data[(2 * e + j) * half : (2 * e + j + 1) * half]
            tensors[f"expect.grad.experts.{e}.{name}.weight"] = (dtype, [rows // 2, columns], part)
    dtype, (num_experts, rows, columns), data = tensors.pop("expect.grad.experts.down_proj")
    size = rows * columns * SIZES[dtype]
    for e in range(num_experts):
        tensors[f"expect.grad.experts.{e}.w2.weight"] = (dtype, [rows, columns], data[e * size : (e + 1) * size])


def main(source, target, *commands):
    metadata, tensors = load(source)
    for command in commands:
        verb, _, rest = command.partition(":")
        name, _, value = rest.partition("=")
        if verb == "split_experts":
            split_experts(tensors)
        elif verb == "no_metadata":
            metadata = None
        elif verb == "rows":
            for n, (dtype, shape, data) in list(tensors.items()):
                if ".grad." not in n:
                    size = len(data) // shape[0] * int(rest)
                    tensors[n] = (dtype, [int(rest)] + shape[1:], data[:size])
        else:
            dtype, shape, data = tensors[name]
            if verb == "drop":
                del tensors[name]
            elif verb == "rename":
                tensors[value] = tensors.pop(name)
            elif verb == "nan":
                tensors[name] = (dtype, shape, NANS[dtype] + data[SIZES[dtype] :])
            elif verb == "negate":
                size, data = shape[1] * 2, bytearray(data)
                for row in (int(v) for v in value.split(",")):
                    for i in range(row * size + 1, (row + 1) * size, 2):
                        data[i] ^= 0x80
                tensors[name] = (dtype, shape, bytes(data))
            elif verb == "id":
                index, number = (int(v) for v in value.split(","))
                tensors[name] = (dtype, shape, data[: 8 * index] + struct.pack("<q", number) + data[8 * index + 8 :])
            elif verb == "f32":
                wide = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
                tensors[name] = ("F32", shape, wide)
            elif verb == "i32":
                numbers = struct.unpack(f"<{len(data) // 8}q", data)
                tensors[name] = ("I32", shape, struct.pack(f"<{len(numbers)}i", *numbers))
            else:
                sys.exit(f"unknown command {command}")
    save(target, metadata, tensors)


main(*sys.argv[1:])
