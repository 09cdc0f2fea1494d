# Cross-compiles for 64-bit Arm Linux with Debian's compiler. What was built runs under qemu-user with Debian's own arm64
# libc (libc6:arm64, which libyaml-dev:arm64 brings).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
