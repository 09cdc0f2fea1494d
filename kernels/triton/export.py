#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Purr package of Triton kernels: cubins with a manifest of what Triton's own metadata lacks.

Needs Triton (3.2 or newer) alone, and no GPU where it compiles itself. A package may hold several kernels, and of each
several signatures and architectures; at launch libpurr takes the one that fits the device and the arguments. Adding to a
package that is there keeps what it holds.

Compile a function of a file:

  export.py PACKAGE --source vector_add.py:add_kernel --target sm_90 --target sm_80 --num-warps 4
            --signature "x_ptr=*fp32:16, y_ptr=*fp32:16, out_ptr=*fp32:16, scale=fp32, n=i32, BLOCK=1024"
            --grid "cdiv(n, BLOCK)"

  One --signature for each variant, each compiled for every --target. `:16` promises that an address or integer is a
  multiple of 16; NAME=VALUE without a type is a constant. The sides of the grid are sums of numbers and integer arguments
  with + - * / % cdiv(a, b) min(a, b) max(a, b); without --grid the caller gives the grid.

Take over what Triton has compiled and cached:

  export.py PACKAGE --cache ~/.triton/cache/SOMEFOLDER [--signature ...] [--grid ...]

  Names, types and promises are read from the cached .ttir where it has them (Triton 3.5 and newer); constants are not in
  the cache: give a --signature where they matter.

From Python, with the compiled kernel that a launch or triton.compile returns:

  package = export.Package("my_kernels")
  package.add(add_kernel[grid](x, y, out, 2.0, n, BLOCK=1024), grid=["cdiv(n, BLOCK)"])
  package.write("my_kernels")
"""
import argparse
import hashlib
import json
import os
import re
import sys

FORMAT = 2


class ExportError(Exception):
    pass


# ---- arguments ----


def argument(name, type_, divisible_by=1, constant=None, is_constant=False, descriptor=None):
    """One entry of "arguments", without what the manifest may leave out."""
    entry = {"name": str(name), "type": type_}
    if divisible_by != 1 and not is_constant:
        entry["divisible_by"] = divisible_by
    if is_constant:
        if hasattr(constant, "value"):  # tl.constexpr
            constant = constant.value
        if not isinstance(constant, (bool, int, float, str, type(None))):
            constant = getattr(constant, "name", None) or str(constant)  # a dtype, a function
        if isinstance(constant, str):
            constant = constant[:63] or "''"
        if isinstance(constant, float) and (constant != constant or abs(constant) == float("inf")):
            constant = str(constant)
        entry["constant"] = constant
    if descriptor is not None:
        entry["descriptor"] = {
            "swizzle": int(descriptor["swizzle"]),
            "element_bytes": int(descriptor["elem_size"]),
            "element_type": int(descriptor["elem_type"]),
            "block": [int(extent) for extent in descriptor["block_size"]],
            "fp4_padded": bool(descriptor.get("fp4_padded", False)),
        }
    return entry


def flatten(name, type_, path, constants, promises):
    """An argument, or those that a tuple becomes."""
    if path in constants:
        yield argument(name, "constexpr", constant=constants[path], is_constant=True)
    elif isinstance(type_, (tuple, list)):
        for i, item in enumerate(type_):
            yield from flatten(f"{name}.{i}", item, path + (i,), constants, promises)
    elif type_ == "constexpr":
        yield argument(name, "constexpr", constant=None, is_constant=True)
    else:
        yield argument(name, type_, promises.get(path, 1))


def arguments_of_source(source):
    """What CompiledKernel.src knows, in the forms of all versions."""
    names = list(source.fn.arg_names)
    as_path = lambda key: (names.index(key),) if isinstance(key, str) else key if isinstance(key, tuple) else (key,)
    constants = {as_path(key): value for key, value in dict(source.constants).items()}
    promises = {}
    attrs = source.attrs
    if hasattr(attrs, "to_dict"):  # 3.2
        for idx in attrs.to_dict()["arg_properties"].get("tt.divisibility", ()):
            promises[(idx,)] = 16
    else:
        for path, items in dict(attrs).items():
            for key, value in items:
                if key == "tt.divisibility":
                    promises[as_path(path)] = value
    found = []
    for i, name in enumerate(names):
        found += flatten(name, source.signature.get(name, "constexpr"), (i,), constants, promises)
    return found


def split_signature(text):
    """The items between commas outside of brackets."""
    depth, items, item = 0, [], ""
    for c in text:
        depth += (c in "<[") - (c in ">]")
        if c == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += c
    return [item.strip() for item in items + [item] if item.strip()]


def literal(text):
    known = {"None": None, "True": True, "False": False}
    if text in known:
        return known[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise ExportError(f"'{text}' is neither a type nor a constant")


TYPE = re.compile(r"^(\*k?[A-Za-z0-9]+|[iu](1|8|16|32|64)|bf16|fp(16|32|64)|f32|nvTmaDesc|tensordesc<.*>)$")


def parse_signature(text, names=None):
    """Arguments from "x=*fp32:16, n=i32, BLOCK=1024"."""
    found = []
    for i, item in enumerate(split_signature(text)):
        name, _, rest = item.rpartition("=")
        name = name.strip() or (names[i] if names and i < len(names) else str(i))
        type_, colon, promise = rest.strip().rpartition(":")
        if not colon:
            type_, promise = rest.strip(), "1"
        if TYPE.match(type_.strip()):
            found.append(argument(name, type_.strip(), int(promise)))
        else:
            found.append(argument(name, "constexpr", constant=literal(rest.strip()), is_constant=True))
    return found


def add_descriptors(arguments, metadata):
    """Gives tensor descriptors what the compiler decided about them."""
    known = list(metadata.get("tensordesc_meta") or [])
    wanted = [entry for entry in arguments if entry["type"].startswith("tensordesc")]
    if known and len(known) != len(wanted):
        raise ExportError(f"the kernel has {len(known)} tensor descriptors, the signature {len(wanted)}")
    for entry, descriptor in zip(wanted, known):
        if descriptor is not None:
            if descriptor.get("is_im2col"):
                raise ExportError(f"argument {entry['name']} is an im2col descriptor; only tiled ones are known")
            entry.update(argument("", "", descriptor=descriptor) | {"name": entry["name"], "type": entry["type"]})


# ---- the image ----


def parameter_bytes(ptx, entry):
    """The size of each parameter, from the PTX; None where it does not say."""
    match = re.search(r"\.entry\s+" + re.escape(entry) + r"\s*\((.*?)\)", ptx, re.S)
    if match is None:
        return None
    sizes = []
    for line in match.group(1).split(","):
        found = re.search(r"\.param\s+(?:\.align\s+\d+\s+)?\.([busf])(\d+)\b", line)
        if found is None:
            continue
        array = re.search(r"\[(\d+)\]\s*$", line.strip())
        sizes.append(int(found.group(2)) // 8 * (int(array.group(1)) if array else 1))
    return sizes


def declared_bytes(arguments, version):
    """The size of all parameters, from the types and what each version adds."""
    element = {"1": 1, "8": 1, "16": 2, "32": 4, "64": 8}
    total = 0
    for entry in arguments:
        type_ = entry["type"]
        if "constant" in entry:
            continue
        if type_[0] == "*":
            total += 8
        elif type_ == "nvTmaDesc":
            total += 128
        elif type_.startswith("tensordesc"):
            rank = type_[type_.index("[") : type_.index("]")].count(",") + 1
            total += 12 * rank
            total += 128 if "descriptor" in entry else 8 + 16 * rank + (version >= (3, 5)) + (version >= (3, 7))
        else:
            total += element[re.sub(r"\D*", "", type_)]
    return total + 8 * ((version >= (3, 3)) + (version >= (3, 5)))


def describe(metadata, arguments, grid, ptx, kernel):
    """A kernel of the manifest."""
    version = str(metadata.get("triton_version") or "3.2.0")
    parts = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    num_ctas = int(metadata.get("num_ctas", 1))
    cluster = [num_ctas, 1, 1]
    if num_ctas > 1 and metadata.get("cluster_dims"):
        cluster = [int(extent) for extent in metadata["cluster_dims"]]
    if metadata.get("profile_scratch_size") or metadata.get("instrumentation_mode"):
        raise ExportError(f"kernel {kernel} was compiled for a profiler or sanitizer; compile it without")
    sizes = parameter_bytes(ptx, metadata["name"]) if ptx else None
    spec = {
        "kernel": kernel,
        "version": version,
        "arguments": arguments,
        "cooperative": bool(metadata.get("launch_cooperative_grid") or False),
        "overlap": bool(metadata.get("launch_pdl") or False),
        "scratch_bytes": int(metadata.get("global_scratch_size") or 0),
        "scratch_align": int(metadata.get("global_scratch_align") or 1),
    }
    if grid:
        spec["grid"] = (list(grid) + ["1", "1"])[:3]
    return {
        "entry": metadata["name"],
        "role": "triton",
        "threads": 32 * int(metadata["num_warps"]),
        "shared_bytes": int(metadata["shared"]),
        "cluster": cluster,
        "tile": [0, 0],
        "params_version": 0,
        "params_bytes": sum(sizes) if sizes else declared_bytes(arguments, parts),
        "shapes": [],
        "triton": spec,
    }


def arch_text(arch, version):
    """What ptxas was told: from compute capability 9.0 on the features of that chip alone."""
    number = int(arch)
    only_90 = version.startswith("3.2")
    return f"sm_{number}a" if number == 90 or (number > 90 and not only_90) else f"sm_{number}"


# ---- the package ----


class Package:
    def __init__(self, name, path=None):
        """With a path, what is there already is kept."""
        self.name = name
        self.images = {}  # file -> (bytes or None, record)
        if path and os.path.exists(os.path.join(path, "manifest.json")):
            with open(os.path.join(path, "manifest.json")) as file:
                manifest = json.load(file)
            if manifest["format"] > FORMAT:
                raise ExportError(f"{path} has format {manifest['format']}; this script writes {FORMAT}")
            self.name = manifest["name"]
            for image in manifest["images"]:
                with open(os.path.join(path, image["file"]), "rb") as file:
                    self.images[image["file"]] = (file.read(), image)

    def add_raw(self, metadata, cubin, arguments, grid=None, ptx=None, kernel=None):
        """Adds one compiled form: Triton's metadata as a dict, the image, the arguments as in the manifest."""
        target = metadata["target"]
        target = target if isinstance(target, dict) else target._asdict() if hasattr(target, "_asdict") else vars(target)
        if target["backend"] != "cuda":
            raise ExportError(f"the kernel is compiled for {target['backend']}, not for cuda")
        kernel = kernel or metadata["name"]
        add_descriptors(arguments, metadata)
        record = describe(metadata, arguments, grid, ptx, kernel)
        arch = arch_text(target["arch"], record["triton"]["version"])
        key = json.dumps([record, arch], sort_keys=True)
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", kernel)[:64]
        file = f"{plain}.{arch}.{hashlib.sha256(key.encode()).hexdigest()[:8]}.cubin"
        self.images[file] = (
            bytes(cubin),
            {"file": file, "arch": arch, "sha256": hashlib.sha256(cubin).hexdigest(), "kernels": [record]},
        )
        return file

    def add(self, compiled, grid=None, kernel=None):
        """Adds a triton.compiler.CompiledKernel."""
        metadata = compiled.metadata
        metadata = metadata if isinstance(metadata, dict) else metadata._asdict()
        arguments = arguments_of_source(compiled.src)
        name = kernel or getattr(compiled.src, "name", None)
        return self.add_raw(metadata, compiled.asm["cubin"], arguments, grid, compiled.asm.get("ptx"), name)

    def write(self, path):
        """Writes the folder; the manifest comes last, so that a package without one is not used."""
        os.makedirs(path, exist_ok=True)
        records = []
        for file, (data, record) in sorted(self.images.items()):
            with open(os.path.join(path, file), "wb") as out:
                out.write(data)
            records.append(record)
        versions = sorted({k["triton"]["version"] for r in records for k in r["kernels"] if "triton" in k})
        manifest = {
            "format": FORMAT,
            "name": self.name,
            "producer": "triton " + ", ".join(versions) + ", export.py",
            "images": records,
        }
        temporary = os.path.join(path, "manifest.json.new")
        with open(temporary, "w") as out:
            json.dump(manifest, out, indent=1)
            out.write("\n")
        os.replace(temporary, os.path.join(path, "manifest.json"))


# ---- compiling ----


def load_function(source):
    path, _, name = source.rpartition(":")
    if not path:
        raise ExportError(f"'{source}' is not FILE.py:FUNCTION")
    import importlib.util

    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ExportError(f"{path} has no function '{name}'")
    return getattr(module, name)


def compile_variant(function, signature, arch, options):
    """Compiles a JIT function for an architecture without a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(function.arg_names)
    given = {entry["name"]: entry for entry in parse_signature(signature, names)}
    for name in given:
        if name not in names:
            raise ExportError(f"the function has no argument '{name}'; it has {', '.join(names)}")
    types, constants, promises = {}, {}, {}
    for i, name in enumerate(names):
        if name not in given:
            default = function.signature.parameters[name].default
            if default is function.signature.empty:
                raise ExportError(f"argument '{name}' is not in the signature")
            given[name] = argument(name, "constexpr", constant=default, is_constant=True)
        entry = given[name]
        types[name] = entry["type"]
        if "constant" in entry:
            constants[i] = entry["constant"]
        elif entry.get("divisible_by", 1) > 1:
            promises[i] = entry["divisible_by"]
    if tuple(int(p) for p in triton.__version__.split(".")[:2]) < (3, 3):
        from triton.backends.compiler import AttrsDescriptor

        attrs = AttrsDescriptor.from_dict(
            {
                "arg_properties": {"tt.divisibility": tuple(promises), "tt.equal_to": ()},
                "cls": "AttrsDescriptor",
            }
        )
        types = {name: type_ for name, type_ in types.items() if type_ != "constexpr"}
        source = ASTSource(function, types, {names[i]: value for i, value in constants.items()}, attrs)
    else:
        attrs = {(i,): [["tt.divisibility", value]] for i, value in promises.items()}
        source = ASTSource(function, types, {(i,): value for i, value in constants.items()}, attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


# ---- Triton's cache ----

TTIR_TYPE = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64", "f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5"}


def type_of_ttir(text):
    pointer = re.match(r"!tt\.ptr<([A-Za-z0-9]+)", text)
    if pointer:
        return "*" + TTIR_TYPE.get(pointer.group(1), pointer.group(1))
    descriptor = re.match(r"!tt\.tensordesc<tensor<([0-9x]+)x([A-Za-z0-9]+)", text) or re.match(
        r"!tt\.tensordesc<([0-9x]+)x([A-Za-z0-9]+)", text
    )
    if descriptor:
        shape = ", ".join(descriptor.group(1).split("x"))
        return f"tensordesc<{TTIR_TYPE.get(descriptor.group(2), descriptor.group(2))}[{shape}]>"
    scalar = re.match(r"[A-Za-z0-9]+", text)
    return TTIR_TYPE.get(scalar.group(0), scalar.group(0))


def arguments_of_ttir(text, entry):
    """Names, types and promises from the function's head. Behind a descriptor stand its shape and strides."""
    match = re.search(r"tt\.func public @" + re.escape(entry) + r"\((.*)\) attributes", text)
    if match is None:
        return None
    found, parts = [], 0
    for item in re.split(r",\s*(?=%)", match.group(1)):
        head = re.match(r"%([A-Za-z0-9_.]+): (.*)", item)
        if head is None:
            continue
        if parts > 0:
            parts -= 1
            continue
        type_ = type_of_ttir(head.group(2))
        promise = re.search(r"tt\.divisibility = (\d+)", head.group(2))
        found.append(argument(head.group(1), type_, int(promise.group(1)) if promise else 1))
        if type_.startswith("tensordesc"):
            parts = 2 * (type_.count(",") + 1)
    return found


def add_cached(package, folder, signature, grid):
    stems = sorted(
        f[:-5] for f in os.listdir(folder) if f.endswith(".json") and os.path.exists(os.path.join(folder, f[:-5] + ".cubin"))
    )
    if not stems:
        raise ExportError(f"{folder} has no .json with a .cubin beside it")
    read = lambda name, mode="r": open(os.path.join(folder, name), mode).read()
    for stem in stems:
        metadata = json.loads(read(stem + ".json"))
        ptx = read(stem + ".ptx") if os.path.exists(os.path.join(folder, stem + ".ptx")) else None
        if signature:
            arguments = parse_signature(signature)
        elif os.path.exists(os.path.join(folder, stem + ".ttir")):
            arguments = arguments_of_ttir(read(stem + ".ttir"), metadata["name"])
        else:
            arguments = None
        if arguments is None:
            raise ExportError(f"{folder}/{stem}.ttir does not tell the arguments; give them with --signature")
        package.add_raw(metadata, read(stem + ".cubin", "rb"), arguments, grid, ptx)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="export.py PACKAGE [options]"
    )
    parser.add_argument("package", help="folder of the package; made, or added to")
    parser.add_argument("--name", help="of a new package; default: that of the folder")
    parser.add_argument("--source", metavar="FILE.py:FUNCTION", help="a function with @triton.jit to compile")
    parser.add_argument("--cache", metavar="FOLDER", help="a folder of Triton's cache to take over")
    parser.add_argument("--signature", action="append", default=[], help="one for each variant")
    parser.add_argument("--target", action="append", default=[], metavar="sm_90", help="default: sm_90")
    parser.add_argument("--grid", action="append", default=[], help="one for each side of the grid; the others are 1")
    parser.add_argument("--num-warps", type=int, default=4)
    parser.add_argument("--num-ctas", type=int, default=1, help="blocks of a cluster")
    parser.add_argument("--num-stages", type=int, default=3)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="any other of Triton's options")
    args = parser.parse_args()
    try:
        if (args.source is None) == (args.cache is None):
            raise ExportError("give either --source or --cache")
        package = Package(args.name or os.path.basename(os.path.abspath(args.package)), args.package)
        if args.cache:
            add_cached(package, args.cache, args.signature[0] if args.signature else None, args.grid)
        else:
            options = {"num_warps": args.num_warps, "num_ctas": args.num_ctas, "num_stages": args.num_stages}
            for option in args.option:
                key, _, value = option.partition("=")
                options[key] = literal(value)
            function = load_function(args.source)
            for signature in args.signature or [""]:
                for target in args.target or ["sm_90"]:
                    arch = int(re.sub(r"\D", "", target))
                    package.add(compile_variant(function, signature, arch, options), args.grid)
        package.write(args.package)
    except (ExportError, OSError, KeyError) as error:
        sys.exit(f"export.py: {error}")
    print(f"{args.package}: {len(package.images)} images")


if __name__ == "__main__":
    main()
