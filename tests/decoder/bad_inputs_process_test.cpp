// SPDX-License-Identifier: Apache-2.0
//
// What only a process of its own can meet: streams that are closed or full, limits, files that change under it.
#include "decoder/tiny_model.hpp"

#include "app/terminal.hpp"

#include <gmock/gmock.h>

#include <csignal>
#include <functional>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

namespace oasis_decode::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

struct Ended {
    int code = -1; ///< 128 + n after signal n
    std::string out;
    std::string err;
};

class Process : public testing::Test {
protected:
    void SetUp() override { write_file(folder_ / "model.gguf", TinyModel().gguf().str()); }
    std::string path(const char* name) const { return (folder_ / name).string(); }
    std::string model() const { return path("model.gguf"); }

    /// Runs oasis-decode; `prepare` runs in the child, after its streams lead into files.
    Ended decode(std::vector<std::string> arguments, const std::function<void()>& prepare = [] {}) const
    {
        arguments.insert(arguments.begin(), OASIS_DECODE);
        std::vector<char*> argv;
        for (std::string& argument : arguments) { argv.push_back(argument.data()); }
        argv.push_back(nullptr);
        const std::string out = path("stdout"), err = path("stderr");
        const pid_t child = ::fork();
        if (child == 0) {
            lead(STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
            lead(STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
            prepare();
            ::execv(argv[0], argv.data());
            ::_exit(127);
        }
        int status = 0;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out), read_file(err)};
    }
    Ended run(const std::function<void()>& prepare, const std::vector<std::string>& more = {}) const
    {
        std::vector<std::string> arguments{"run", model(), "--prompt", "ab", "--max-tokens", "4"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return decode(arguments, prepare);
    }
    static void lead(int stream, const char* file, int flags)
    {
        const int opened = ::open(file, flags, 0644);
        ::dup2(opened, stream);
        ::close(opened);
    }
    static void limit(int resource, std::uint64_t most)
    {
        const rlimit both{most, most};
        ::setrlimit(static_cast<__rlimit_resource>(resource), &both);
    }
    static void expect_failure(const Ended& ended, const std::string& sentence, int code = 1)
    {
        EXPECT_EQ(ended.code, code) << ended.err;
        EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
        EXPECT_THAT(ended.err, testing::StartsWith("oasis-decode: "));
        EXPECT_THAT(ended.err, HasSubstr(sentence));
    }

    TemporaryFolder folder_{};
};

TEST_F(Process, AReaderThatGoesAwayEndsItQuietly)
{
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ::close(ends[0]);
    const Ended ended = run([&] { ::dup2(ends[1], STDOUT_FILENO); });
    ::close(ends[1]);
    EXPECT_EQ(ended.code, 141);
    EXPECT_EQ(ended.err, "");
}

TEST_F(Process, StandardOutputThatIsFullOrClosedIsAFailure)
{
    expect_failure(run([] { lead(STDOUT_FILENO, "/dev/full", O_WRONLY); }), "standard output: No space left on device");
    expect_failure(run([] { ::close(STDOUT_FILENO); }), "standard output: Bad file descriptor");
}

TEST_F(Process, ClosedStreamsAreNotTakenForFiles)
{
    const std::vector<std::string> more{"--slow", "file:" + path("kv"), "--json", path("out.json")};
    for (const int first : {0, 1, 2}) {
        SCOPED_TRACE(first);
        const Ended ended = run(
            [&] {
                for (int stream = first; stream <= 2; ++stream) { ::close(stream); }
            },
            more);
        // Without standard error alone everything goes well; what is printed must not end up in the tier's file.
        EXPECT_EQ(ended.code, first == 2 ? 0 : 1);
        EXPECT_EQ(std::filesystem::exists(path("out.json")), first == 2);
    }
    // The tier's file would be number 1.
    expect_failure(run([] { ::close(STDOUT_FILENO); }, more), "standard output: Bad file descriptor");
}

TEST_F(Process, AStandardErrorThatIsFullChangesNoExitCode)
{
    EXPECT_EQ(decode({"run"}, [] { lead(STDERR_FILENO, "/dev/full", O_WRONLY); }).code, 2);
    EXPECT_EQ(decode({"inspect", path("absent")}, [] { lead(STDERR_FILENO, "/dev/full", O_WRONLY); }).code, 1);
}

TEST_F(Process, StandardInputThatIsClosedOrEmptyIsAFailure)
{
    const std::vector<std::string> arguments{"run", model(), "--file", "-"};
    expect_failure(decode(arguments, [] { ::close(STDIN_FILENO); }), "cannot read standard input: Bad file descriptor");
    expect_failure(decode(arguments, [] { lead(STDIN_FILENO, "/dev/null", O_RDONLY); }), "the prompt is empty");
}

TEST_F(Process, AReportThatDoesNotFitIsAFailureAndLeavesNothing)
{
    expect_failure(run([] {}, {"--json", "/dev/full"}), "--json /dev/full: cannot be written: No space left on device");
    const Ended ended = run([] { limit(RLIMIT_FSIZE, 500); }, {"--json", path("out.json")});
    EXPECT_EQ(ended.code, 1);
    EXPECT_FALSE(std::filesystem::exists(path("out.json")));
    EXPECT_FALSE(std::filesystem::exists(path("out.json.part")));
}

TEST_F(Process, AFolderThatCannotBeWrittenIsSaidBeforeTheWork)
{
    ::chmod(folder_.path().c_str(), 0755);
    std::filesystem::create_directory(path("closed"));
    ::chmod(path("closed").c_str(), 0555);
    const auto as_nobody = [] {
        if (::geteuid() == 0 && ::setuid(65534) != 0) { ::_exit(126); }
        ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // may be refused to a user without rights
    };
    const Ended ended = run(as_nobody, {"--json", path("closed/out.json")});
    if (ended.code == 126) { GTEST_SKIP() << "needs the right to become user 65534 (CAP_SETUID), or not to be root"; }
    if (ended.code == 127) { GTEST_SKIP() << "needs a folder and program that user 65534 can reach: " << OASIS_DECODE; }
    expect_failure(ended, "closed/out.json: cannot be written: Permission denied");
    EXPECT_EQ(ended.out, "");
}

TEST_F(Process, AModelThatIsAFifoIsNotWaitedFor)
{
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
    expect_failure(decode({"inspect", path("fifo")}), "fifo: not a regular file");
    expect_failure(decode({"inspect", "/dev/zero"}), "/dev/zero: not a regular file");
}

TEST_F(Process, AFileThatShrinksWhileItIsReadEndsItWithASentence)
{
    const std::string file = path("model.gguf");
    EXPECT_EXIT(
        {
            install_signal_handlers();
            const MappedFile mapped(file);
            const auto bytes = mapped.bytes();
            if (::truncate(file.c_str(), 100) != 0) { ::_exit(127); }
            volatile std::byte last = bytes[bytes.size() - 1];
            ::_exit(last == std::byte{0} ? 126 : 125);
        },
        testing::ExitedWithCode(1), "oasis-decode: .*model.gguf: shrank while it was read");
}

TEST_F(Process, LittleMemoryIsASentence)
{
    if (kSanitized) {
        GTEST_SKIP() << "the sanitizer reserves more addresses than any limit leaves; builds without it run this";
    }
    // The files are 29 MB; with 16 MiB the program itself starts, with 56 it still cannot do its work.
    for (const std::uint64_t mebibytes : {16, 24, 36, 48, 56}) {
        SCOPED_TRACE(mebibytes);
        const Ended ended = decode({"run", OASIS_TEST_DATA_DIR "/retrieval-14m", "--prompt", "ab", "--threads", "2"},
                                   [&] { limit(RLIMIT_AS, mebibytes << 20); });
        expect_failure(ended, "");
        EXPECT_THAT(ended.err, AnyOf(HasSubstr("memory"), HasSubstr("address range"), HasSubstr("cannot be started")));
    }
    expect_failure(run([] { limit(RLIMIT_AS, std::uint64_t{2} << 30); }, {"--threads", "1024"}), "cannot be started");
}

} // namespace
} // namespace oasis_decode::test
