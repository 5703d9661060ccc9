package child

import (
	"slices"
	"strings"
)

// inherited are the variables of this process that programs get: where to find files and GPUs, how to reach networks, and settings of
// engines and their libraries. All others, such as the credentials of object stores, stay here.
var inherited = []string{
	"HOME", "HOSTNAME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "PWD", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER",
	"LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "VIRTUAL_ENV",
	"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
	"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",
	"GOCOVERDIR", "GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK",
}

// inheritedPrefixes begin the names of further ones.
var inheritedPrefixes = []string{
	"LC_", "XDG_",
	"CUDA_", "GPU_", "HIP_", "HSA_", "NVIDIA_", "ROCM_", "ROCR_",
	"FI_", "GLOO_", "NCCL_", "NIXL_", "NVSHMEM_", "OMPI_", "PMIX_", "UCX_",
	"GOMP_", "KMP_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_",
	"CONDA_", "PYTHON", "PYTORCH_", "TORCH", "TRITON_",
	"FLASHINFER_", "GGML_", "HF_", "HUGGINGFACE_", "LLAMA_", "LMCACHE_", "MOONCAKE_", "RAY_", "SGLANG_", "SGL_", "STATOR_", "TLLM_",
	"TOKENIZERS_", "TRANSFORMERS_", "TRTLLM_", "VLLM_",
}

// Environment returns the variables of a program: this process's variables that programs get, and added, which come last and
// count.
func Environment(own, added []string) []string {
	list := make([]string, 0, len(own)+len(added))
	for _, variable := range own {
		name, _, _ := strings.Cut(variable, "=")
		isKind := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if slices.Contains(inherited, name) || slices.ContainsFunc(inheritedPrefixes, isKind) {
			list = append(list, variable)
		}
	}
	return append(list, added...)
}
