// SPDX-License-Identifier: Apache-2.0
#include "contracts/store_contract.hpp"
#include "fault/failing_store.hpp"

#include <oasis/tier/any_store.hpp>
#include <oasis/tier/file_store.hpp>
#include <oasis/tier/throttled_store.hpp>

#include <filesystem>

namespace oasis::contracts {
namespace {

FileStoreOptions in_the_temporary_folder(DirectIo direct_io)
{
    return {.path = std::filesystem::temp_directory_path().string(), .direct_io = direct_io};
}

/// A file through the page cache, whatever the file system can.
struct BufferedFileStore : FileStore {
    explicit BufferedFileStore(const StoreOptions& options)
        : FileStore(options, in_the_temporary_folder(DirectIo::kOff))
    {
    }
};

} // namespace

template <> struct StoreFactory<FileStore> {
    static std::unique_ptr<FileStore> make(const StoreOptions& options)
    {
        return std::make_unique<FileStore>(options, in_the_temporary_folder(DirectIo::kAuto));
    }
};

/// Fast enough for the suite, slow enough to sleep.
template <> struct StoreFactory<ThrottledStore<RamStore>> {
    static std::unique_ptr<ThrottledStore<RamStore>> make(const StoreOptions& options)
    {
        return std::make_unique<ThrottledStore<RamStore>>(
            options,
            ThrottleOptions{.bytes_per_second = 2e9, .latency = std::chrono::microseconds(1), .throttle_writes = true});
    }
};

using StockStores = testing::Types<RamStore, fault::FailingStore<RamStore>, fault::FailingStore<AnyStore>, AnyStore,
                                   ThrottledStore<RamStore>, FileStore, BufferedFileStore>;
INSTANTIATE_TYPED_TEST_SUITE_P(Stock, StoreContract, StockStores);

} // namespace oasis::contracts
