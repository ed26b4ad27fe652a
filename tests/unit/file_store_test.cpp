// SPDX-License-Identifier: Apache-2.0
#include <oasis/core/error.hpp>
#include <oasis/tier/any_store.hpp>
#include <oasis/tier/file_store.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <csignal>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/mount.h>
#endif

namespace oasis {
namespace {

namespace fs = std::filesystem;
using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

/// A folder of its own; removed at the end.
class FileStoreTest : public testing::TestWithParam<DirectIo> {
protected:
    static constexpr std::size_t kUnit = 4224; // not a multiple of a page
    static constexpr StoreOptions kShape{.unit_bytes = kUnit, .layers = 2, .sets = 2, .capacity_bytes = kUnit * 4 * 8};

    FileStoreTest()
    {
        std::string name = (fs::temp_directory_path() / "oasis-file-store-XXXXXX").string();
        folder_ = mkdtemp(name.data());
    }
    ~FileStoreTest() override { fs::remove_all(folder_); }

    std::unique_ptr<FileStore> make(const StoreOptions& options = kShape) const
    {
        return std::make_unique<FileStore>(options,
                                           FileStoreOptions{.path = folder_.string(), .direct_io = GetParam()});
    }
    static std::vector<std::byte> bytes_of(int seed, std::size_t n = kUnit)
    {
        std::vector<std::byte> bytes(n);
        for (std::size_t i = 0; i < n; ++i) { bytes[i] = static_cast<std::byte>(i * 7 + std::size_t(seed) * 31); }
        return bytes;
    }
    static bool write(FileStore& store, std::int32_t block, int seed, std::int32_t set = 0)
    {
        auto bytes = bytes_of(seed);
        return store.write({BlockId{block}, 1, set, bytes.data()});
    }
    static AssertionResult holds(FileStore& store, std::int32_t block, int seed, std::int32_t set = 0)
    {
        std::vector<std::byte> bytes(kUnit);
        if (!store.read({BlockId{block}, 1, set, bytes.data()})) {
            return AssertionFailure() << "not delivered: " << store.last_error();
        }
        return bytes == bytes_of(seed) ? AssertionSuccess() : AssertionFailure() << "other bytes";
    }
    static bool refuses(FileStore& store, std::int32_t block, std::int32_t set = 0)
    {
        std::vector<std::byte> bytes(kUnit);
        return !store.read({BlockId{block}, 1, set, bytes.data()});
    }
    static AssertionResult says(const FileStore& store, std::initializer_list<const char*> parts)
    {
        for (const char* part : parts) {
            if (store.last_error().find(part) == std::string::npos) {
                return AssertionFailure() << part << " is not in: " << store.last_error();
            }
        }
        return AssertionSuccess();
    }
    /// The store's file through the page cache: its name is gone.
    static int reopen(const FileStore& store)
    {
        return ::open(("/proc/self/fd/" + std::to_string(store.descriptor())).c_str(), O_RDWR | O_CLOEXEC);
    }

    fs::path folder_;
};

INSTANTIATE_TEST_SUITE_P(Io, FileStoreTest, testing::Values(DirectIo::kAuto, DirectIo::kOff),
                         [](const auto& p) { return p.param == DirectIo::kAuto ? "Auto" : "Buffered"; });

/// For as long as it lives no file of the process grows beyond `bytes`.
class FileSizeLimit {
public:
    explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN))
    {
        getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit now{bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &now);
    }
    FileSizeLimit(const FileSizeLimit&) = delete;
    FileSizeLimit& operator=(const FileSizeLimit&) = delete;
    ~FileSizeLimit()
    {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }

private:
    void (*handler_)(int);
    rlimit before_{};
};

TEST_P(FileStoreTest, LeavesNoNameBehind)
{
    const auto store = make();
    EXPECT_TRUE(fs::is_empty(folder_)) << "the name is gone while the store lives";
    EXPECT_EQ(fs::path(store->path()).parent_path(), folder_);
    EXPECT_EQ(store->direct(), store->note().empty());
    struct stat status {};
    ASSERT_EQ(fstat(store->descriptor(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
    EXPECT_EQ(status.st_nlink, 0U);
}

TEST_P(FileStoreTest, AnExistingFileIsNotTouched)
{
    const fs::path path = folder_ / "precious";
    std::ofstream(path) << "text";
    const auto refused = [&](const std::string& at, const char* name) {
        try {
            FileStore store(kShape, {.path = at, .direct_io = GetParam()});
            ADD_FAILURE() << at;
        } catch (const StoreError& e) {
            EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
            EXPECT_NE(std::string(e.what()).find(at), std::string::npos) << e.what();
        }
    };
    refused(path.string(), "EEXIST");
    refused((folder_ / "absent" / "file").string(), "ENOENT");
    EXPECT_EQ(fs::file_size(path), 4U);
    const FileStore named(kShape, {.path = (folder_ / "new").string(), .direct_io = GetParam()});
    EXPECT_EQ(named.path(), (folder_ / "new").string());
    EXPECT_FALSE(fs::exists(folder_ / "new"));
    EXPECT_THROW(FileStore(kShape, {.path = "", .direct_io = GetParam()}), InvalidArgument);
    EXPECT_THROW(FileStore({.unit_bytes = 0, .layers = 1, .sets = 1}, {.path = folder_.string()}), InvalidArgument);
}

TEST_P(FileStoreTest, SizesThatFillPagesAndMemoryThatIsAligned)
{
    for (const std::size_t unit :
         {std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{8192}, std::size_t{1} << 20}) {
        const auto store = make({.unit_bytes = unit, .layers = 2, .sets = 1, .capacity_bytes = unit * 2 * 3});
        const std::unique_ptr<std::byte, decltype(&std::free)> aligned(
            static_cast<std::byte*>(std::aligned_alloc(4096, (unit + 8191) / 4096 * 4096)), &std::free);
        for (std::int32_t b = 0; b < 3; ++b) {
            ASSERT_TRUE(store->reserve(BlockId{b}));
            for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
                const auto bytes = bytes_of(b * 2 + int(shift), unit);
                std::memcpy(aligned.get() + shift, bytes.data(), unit);
                ASSERT_TRUE(store->write({BlockId{b}, LayerId(shift), 0, aligned.get() + shift}));
            }
        }
        EXPECT_FALSE(store->reserve(BlockId{3}));
        for (std::int32_t b = 0; b < 3; ++b) {
            for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
                ASSERT_TRUE(store->read({BlockId{b}, LayerId(shift), 0, aligned.get() + (1 - shift)}))
                    << store->last_error();
                const auto bytes = bytes_of(b * 2 + int(shift), unit);
                EXPECT_EQ(std::memcmp(aligned.get() + (1 - shift), bytes.data(), unit), 0) << unit;
            }
        }
        struct stat status {};
        ASSERT_EQ(fstat(store->descriptor(), &status), 0);
        EXPECT_EQ(std::size_t(status.st_size), store->file_bytes());
    }
}

TEST_P(FileStoreTest, TheFileStaysWithinItsCap)
{
    FileStore store({.unit_bytes = kUnit, .layers = 1, .sets = 1, .capacity_bytes = std::size_t{1} << 40},
                    {.path = folder_.string(), .direct_io = GetParam(), .max_file_bytes = 100'000});
    std::int32_t taken = 0;
    while (store.reserve(BlockId{taken})) { ++taken; }
    EXPECT_EQ(taken, store.direct() ? 12 : 23);
    EXPECT_LE(store.file_bytes(), 100'000U);
}

TEST_P(FileStoreTest, TIER_03_FullDiskIsAValueAndNothingElseIsLost)
{
    const auto store = make({.unit_bytes = kUnit, .layers = 2, .sets = 2, .capacity_bytes = std::size_t{1} << 40});
    const FileSizeLimit limit(256 << 10);
    std::int32_t taken = 0;
    while (taken < 1000 && store->reserve(BlockId{taken})) {
        ASSERT_TRUE(write(*store, taken, taken)) << store->last_error();
        ++taken;
    }
    ASSERT_GE(taken, 2);
    ASSERT_LT(taken, 1000);
    EXPECT_TRUE(says(*store, {"allocation", "EFBIG", store->path().c_str(), "at offset", "block"}));
    EXPECT_EQ(store->bytes_used(), std::size_t(taken) * kUnit * 4);
    for (std::int32_t b = 0; b < taken; ++b) { EXPECT_TRUE(holds(*store, b, b)); }
    store->release(BlockId{1});
    EXPECT_TRUE(store->reserve(BlockId{2000})) << "released room needs no disk";
    EXPECT_FALSE(store->reserve(BlockId{2001}));
}

#if defined(__linux__)
/// In a file system of 1 MiB, in a process of its own. 77: not allowed here.
int fill_small_disk(const fs::path& folder, DirectIo direct_io)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) { return 77; }
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) { return 77; }
    if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") != 0) { return 77; }
    FileStore store({.unit_bytes = 4096, .layers = 1, .sets = 1, .capacity_bytes = std::size_t{1} << 30},
                    {.path = folder.string(), .direct_io = direct_io});
    std::vector<std::byte> bytes(4096, std::byte{3});
    std::int32_t taken = 0;
    while (taken < 1000 && store.reserve(BlockId{taken})) {
        if (!store.write({BlockId{taken}, 0, 0, bytes.data()})) { return 2; }
        ++taken;
    }
    if (taken < 200 || taken > 256) { return 3; }
    if (store.last_error().find("ENOSPC") == std::string::npos) { return 4; }
    if (!store.read({BlockId{taken - 1}, 0, 0, bytes.data()})) { return 5; }
    return 0;
}

TEST_P(FileStoreTest, TIER_03_RealDiskOfOneMegabyte)
{
    const pid_t child = fork();
    if (child == 0) { _exit(fill_small_disk(folder_, GetParam())); }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) { GTEST_SKIP() << "needs the privilege to mount (CAP_SYS_ADMIN)"; }
    EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

TEST_P(FileStoreTest, TIER_04_AFailedWriteLeavesTheUnitUnwritten)
{
    const auto store = make();
    ASSERT_TRUE(store->reserve(BlockId{0}));
    ASSERT_TRUE(store->reserve(BlockId{1}));
    ASSERT_TRUE(write(*store, 0, 1));
    ASSERT_TRUE(write(*store, 1, 2));
    {
        const FileSizeLimit limit(4096);
        EXPECT_FALSE(write(*store, 1, 3));
        EXPECT_TRUE(says(*store, {"write of block 1 layer 1 set 0", "EFBIG", "offset"}));
    }
    EXPECT_TRUE(refuses(*store, 1)) << "neither the old nor the new bytes are certain";
    EXPECT_TRUE(holds(*store, 0, 1));
    EXPECT_TRUE(write(*store, 1, 4));
    EXPECT_TRUE(holds(*store, 1, 4));
}

TEST_P(FileStoreTest, TIER_06_FlippedSwappedAndMissingBytesAreFailedReads)
{
    const auto store = make();
    ASSERT_TRUE(store->reserve(BlockId{0}));
    for (std::int32_t set = 0; set < 2; ++set) { ASSERT_TRUE(write(*store, 0, 5 + set, set)); }
    const std::size_t stride = store->direct() ? 8192 : kUnit;
    const auto at = [&](std::int32_t set) { return off_t(std::size_t(2 + set) * stride); };
    const int file = reopen(*store);
    ASSERT_GE(file, 0);
    std::vector<std::byte> first(kUnit);
    std::vector<std::byte> second(kUnit);
    ASSERT_EQ(pread(file, first.data(), kUnit, at(0)), ssize_t(kUnit));
    ASSERT_EQ(pread(file, second.data(), kUnit, at(1)), ssize_t(kUnit));
    ASSERT_EQ(first, bytes_of(5));
    for (const std::size_t where : {std::size_t{0}, kUnit / 2, kUnit - 1}) {
        auto broken = first;
        broken[where] ^= std::byte{0x10};
        ASSERT_EQ(pwrite(file, broken.data(), kUnit, at(0)), ssize_t(kUnit));
        EXPECT_TRUE(refuses(*store, 0)) << where;
        EXPECT_TRUE(says(*store, {"read of block 0 layer 1 set 0", "checksum"}));
    }
    EXPECT_EQ(store->corrupt_units(), 3U);
    ASSERT_EQ(pwrite(file, second.data(), kUnit, at(0)), ssize_t(kUnit));
    EXPECT_TRUE(refuses(*store, 0)) << "the bytes of another unit";
    EXPECT_TRUE(holds(*store, 0, 6, 1)) << "the unit beside it is whole";
    ASSERT_EQ(ftruncate(file, at(1)), 0);
    EXPECT_TRUE(refuses(*store, 0, 1));
    EXPECT_TRUE(says(*store, {"short read after 0 of"}));
    ASSERT_EQ(ftruncate(file, 0), 0);
    EXPECT_TRUE(refuses(*store, 0));
    EXPECT_EQ(store->corrupt_units(), 4U);
    EXPECT_TRUE(write(*store, 0, 9));
    EXPECT_TRUE(holds(*store, 0, 9));
    close(file);
}

TEST_P(FileStoreTest, API_05_AForkedChildLeavesTheFileAlone)
{
    auto store = make();
    ASSERT_TRUE(store->reserve(BlockId{0}));
    ASSERT_TRUE(write(*store, 0, 1));
    const std::string before = store->last_error();
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = refuses(*store, 0) && !write(*store, 0, 2) && !store->reserve(BlockId{1});
        store->release(BlockId{0});
        const bool told = says(*store, {"forked"});
        store.reset();
        _exit(refused && told ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_TRUE(holds(*store, 0, 1));
    EXPECT_EQ(store->last_error(), before);
    EXPECT_TRUE(write(*store, 0, 3));
    EXPECT_TRUE(holds(*store, 0, 3));
}

TEST_P(FileStoreTest, MisuseIsRefusedWithTheBlock)
{
    const auto store = make();
    ASSERT_TRUE(store->reserve(BlockId{5}));
    const auto refused = [](const auto& call, const char* what) {
        try {
            call();
            ADD_FAILURE() << what;
        } catch (const InvalidArgument& e) {
            EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
        }
    };
    std::byte b{};
    refused([&] { store->reserve(BlockId{5}); }, "block 5 is reserved");
    refused([&] { store->reserve(BlockId{-2}); }, "-2 is negative");
    refused([&] { store->release(BlockId{6}); }, "block 6 is not reserved");
    refused([&] { store->read({BlockId{5}, 2, 0, &b}); }, "layer 2");
    refused([&] { store->write({BlockId{5}, 0, 2, &b}); }, "set 2");
    refused([&] { store->write({BlockId{5}, 0, 0, nullptr}); }, "no memory");
}

TEST_P(FileStoreTest, ErrorsPassThroughTheErasedStore)
{
    AnyStore any(erase_store(make()));
    auto& file = static_cast<StoreAdapter<FileStore>&>(any.tier()).store();
    ASSERT_TRUE(any.reserve(BlockId{0}));
    ASSERT_TRUE(write(file, 0, 1));
    EXPECT_EQ(any.bytes_written(), kUnit);
    EXPECT_EQ(any.last_error(), "");
    ASSERT_EQ(ftruncate(file.descriptor(), 0), 0);
    EXPECT_TRUE(refuses(file, 0));
    EXPECT_EQ(any.last_error(), file.last_error());
    EXPECT_NE(any.last_error(), "");
}

} // namespace
} // namespace oasis
