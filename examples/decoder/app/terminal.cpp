// SPDX-License-Identifier: Apache-2.0
#include "app/terminal.hpp"

#include "model/byte_level.hpp"
#include "model/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace oasis_decode {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

extern "C" void on_interrupt(int) { interrupt_seen = 1; }

void write_to_stderr(std::string_view text) noexcept
{
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
}

// Calls nothing that is not safe in a signal handler.
extern "C" void on_bus_error(int signal, siginfo_t* info, void*)
{
    const char* const file = mapped_file_at(info->si_addr);
    if (!file) {
        std::signal(signal, SIG_DFL); // the access is tried again and ends the process as it would have
        return;
    }
    write_to_stderr("oasis-decode: ");
    write_to_stderr(file);
    write_to_stderr(": shrank while it was read, or cannot be read any more\n");
    _exit(1);
}

constexpr std::size_t kMostLine = 1000;

// The reason often stands at the end, so the middle is left out.
std::string both_ends(const std::string& line)
{
    const auto begins_character = [&](std::size_t at) { return (line[at] & 0xC0) != 0x80; };
    std::size_t first = kMostLine / 2;
    std::size_t last = line.size() - (kMostLine / 2 - 5); // " ... "
    while (!begins_character(first)) { --first; }
    while (last < line.size() && !begins_character(last)) { ++last; }
    return line.substr(0, first) + " ... " + line.substr(last);
}

} // namespace

void put(std::string_view text)
{
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) { return; }
    const int reason = errno;
    if (reason == EPIPE) { throw BrokenPipe(); }
    throw oasis::Error(fmt::format("cannot write to standard output: {}", std::strerror(reason)));
}

void complain(std::string_view text) noexcept
{
    try {
        std::string line = "oasis-decode: ";
        for (text = text.substr(0, text.find('\n')); !text.empty();) {
            const Utf8Step step = next_utf8(text);
            const bool shown = step.valid && step.code >= 0x20 && (step.code < 0x7F || step.code > 0x9F);
            line += shown ? text.substr(0, step.bytes) : "?";
            text.remove_prefix(step.bytes);
        }
        write_to_stderr((line.size() <= kMostLine ? line : both_ends(line)) + "\n");
    } catch (const std::bad_alloc&) {
        write_to_stderr("oasis-decode: out of memory\n");
    }
}

void hold_standard_streams() noexcept
{
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(stream, F_GETFD) == -1 && errno == EBADF) {
            // The lowest free number is this one, as those below it are in use by now.
            static_cast<void>(!::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
        }
    }
}

void install_signal_handlers()
{
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN); // a limit on file sizes is an error of the write
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, nullptr);
    struct sigaction bus {};
    bus.sa_sigaction = on_bus_error;
    bus.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &bus, nullptr);
}

bool interrupted() noexcept { return interrupt_seen != 0; }

void set_interrupted(bool value) noexcept { interrupt_seen = value ? 1 : 0; }

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)),
      total_(std::max<std::int64_t>(total, 1)),
      enabled_(isatty(STDERR_FILENO) == 1),
      colour_(std::getenv("NO_COLOR") == nullptr || *std::getenv("NO_COLOR") == '\0'),
      start_(std::chrono::steady_clock::now())
{
    const char* terminal = std::getenv("TERM");
    if (terminal == nullptr || std::string_view(terminal) == "dumb") { colour_ = false; }
}

Progress::~Progress() { clear(); }

void Progress::advance(std::int64_t count)
{
    done_ += count;
    draw();
}

void Progress::note(std::string text)
{
    note_ = std::move(text);
    draw();
}

void Progress::clear() noexcept
{
    if (!drawn_) { return; }
    write_to_stderr(colour_ ? "\r\033[K"
                            : "\r                                                                               \r");
    drawn_ = false;
}

void Progress::draw()
{
    const auto now = std::chrono::steady_clock::now();
    if (!enabled_ || (drawn_ && now - last_ < std::chrono::milliseconds(100))) { return; }
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::string line = fmt::format("{} {} of {}", label_, done_, total_);
    if (done_ > 0 && seconds > 2) {
        line +=
            fmt::format(", {:.0f} s left", seconds / static_cast<double>(done_) * static_cast<double>(total_ - done_));
    }
    if (!note_.empty()) { line += "  " + note_; }
    line.resize(std::min<std::size_t>(line.size(), 78));
    clear();
    write_to_stderr(fmt::format("\r{}{}{}", colour_ ? "\033[2m" : "", line, colour_ ? "\033[0m" : ""));
    drawn_ = true;
}

} // namespace oasis_decode
