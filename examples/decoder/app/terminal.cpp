// SPDX-License-Identifier: Apache-2.0
#include "terminal.hpp"

#include <oasis/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace oasis_decode {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

extern "C" void on_interrupt(int) { interrupt_seen = 1; }

} // namespace

void put(std::string_view text)
{
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) { return; }
    const int reason = errno;
    if (reason == EPIPE) { throw BrokenPipe(); }
    throw oasis::Error(fmt::format("cannot write to standard output: {}", std::strerror(reason)));
}

void install_signal_handlers()
{
    std::signal(SIGPIPE, SIG_IGN);
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, nullptr);
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
    std::fputs(colour_ ? "\r\033[K"
                       : "\r                                                                               \r",
               stderr);
    std::fflush(stderr);
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
    fmt::print(stderr, "\r{}{}{}", colour_ ? "\033[2m" : "", line, colour_ ? "\033[0m" : "");
    std::fflush(stderr);
    drawn_ = true;
}

} // namespace oasis_decode
