// A backend for ExecuTorch's runtime that hands every call to functions given from outside, through a plain C interface.

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/named_data_map.h>

#include <cstdint>

namespace et = executorch::runtime;

extern "C" {

struct TosaicTensor {
  void* data;
  uint64_t bytes;
  int32_t dtype;
  int32_t rank;
  int64_t sizes[16];
  uint8_t order[16];
};

struct TosaicSpec {
  const char* key;
  const void* value;
  uint64_t bytes;
};

// Zero means success. A delegate is known by its number from `init` to `destroy`; `names` is for `tosaic_find`.
struct TosaicCallbacks {
  int32_t (*init)(
      uint64_t delegate,
      const void* blob,
      uint64_t bytes,
      const TosaicSpec* specs,
      uint64_t count,
      const void* names);
  int32_t (*execute)(uint64_t delegate, const TosaicTensor* tensors, uint64_t count);
  void (*destroy)(uint64_t delegate);
};

}  // extern "C"

namespace {

constexpr size_t kMaxRank = 16;
constexpr size_t kMaxSpecs = 256;
constexpr size_t kMaxArgs = 1024;

struct Delegate {
  uint64_t number;
};

class Backend final : public et::BackendInterface {
 public:
  explicit Backend(const TosaicCallbacks& callbacks) : callbacks_(callbacks) {}

  bool is_available() const override {
    return true;
  }

  et::Result<et::DelegateHandle*> init(
      et::BackendInitContext& context,
      et::FreeableBuffer* processed,
      et::ArrayRef<et::CompileSpec> specs) const override {
    if (specs.size() > kMaxSpecs) {
      return et::Error::InvalidProgram;
    }
    TosaicSpec plain[kMaxSpecs];
    for (size_t i = 0; i < specs.size(); ++i) {
      plain[i] = {specs[i].key, specs[i].value.buffer, specs[i].value.nbytes};
    }
    auto* delegate = new Delegate{next_++};
    const void* names = context.get_named_data_map();
    if (callbacks_.init(delegate->number, processed->data(), processed->size(), plain, specs.size(), names) != 0) {
      delete delegate;
      return et::Error::DelegateInvalidCompatibility;
    }
    return static_cast<et::DelegateHandle*>(delegate);
  }

  et::Error execute(et::BackendExecutionContext&, et::DelegateHandle* handle, et::Span<et::EValue*> args)
      const override {
    if (args.size() > kMaxArgs) {
      return et::Error::InvalidArgument;
    }
    TosaicTensor tensors[kMaxArgs];
    for (size_t i = 0; i < args.size(); ++i) {
      if (!args[i]->isTensor() || !describe(args[i]->toTensor(), tensors[i])) {
        return et::Error::InvalidArgument;
      }
    }
    auto* delegate = static_cast<Delegate*>(handle);
    const int32_t failed = callbacks_.execute(delegate->number, tensors, args.size());
    return failed != 0 ? et::Error::Internal : et::Error::Ok;
  }

  void destroy(et::DelegateHandle* handle) const override {
    auto* delegate = static_cast<Delegate*>(handle);
    callbacks_.destroy(delegate->number);
    delete delegate;
  }

 private:
  static bool describe(const executorch::aten::Tensor& tensor, TosaicTensor& out) {
    const auto sizes = tensor.sizes();
    const auto order = tensor.dim_order();
    if (sizes.size() > kMaxRank || order.size() != sizes.size()) {
      return false;
    }
    out.data = tensor.mutable_data_ptr();
    out.bytes = tensor.nbytes();
    out.dtype = static_cast<int32_t>(tensor.scalar_type());
    out.rank = static_cast<int32_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      out.sizes[i] = sizes[i];
      out.order[i] = order[i];
    }
    return true;
  }

  TosaicCallbacks callbacks_;
  mutable uint64_t next_ = 0;
};

}  // namespace

// `add` is the runtime's own register_backend: a process may hold several copies, and only its loader knows which.
extern "C" int32_t tosaic_register(
    et::Error (*add)(const et::Backend&),
    const char* name,
    const TosaicCallbacks* callbacks) {
  // Never freed: the runtime keeps it until the process ends.
  return static_cast<int32_t>(add({name, new Backend(*callbacks)}));
}

// Passes the program's named data of this key to `take`, if it exists; the memory is valid during the call.
extern "C" void tosaic_find(const void* names, const char* key, void (*take)(const void* data, uint64_t bytes)) {
  if (names == nullptr) {
    return;
  }
  auto found = static_cast<const et::NamedDataMap*>(names)->get_data(key);
  if (found.ok()) {
    take(found->data(), found->size());
    found->Free();
  }
}
