#!/usr/bin/env bash
# Our own C++ compiles without a warning. Needs the unpacked llama.cpp of a build (build/llama.cpp).
set -euo pipefail
cd "$(dirname "$0")/.."
llama=build/llama.cpp
flags=(-std=c++17 -Wall -Wextra -Werror -fsyntax-only -Icsrc -iquote csrc/llama)
for folder in include ggml/include common src; do
    flags+=(-isystem "$llama/$folder")
done
for source in csrc/*.cpp; do
    echo "$source"
    "${CXX:-g++}" "${flags[@]}" "$source"
done
# these lie in llama.cpp's source folders while they are compiled there
for source in csrc/llama/*.cpp; do
    echo "$source"
    "${CXX:-g++}" "${flags[@]}" -isystem "$llama/src/models" "$source"
done
