#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "commands.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/names.h"
#include "invattn/core/version.h"
#include "invattn/dist/world.h"
#include "invattn/io/posix_file.h"
#include "invattn/io/printable.h"

namespace {

constexpr int kUnexpected = 1;
constexpr int kData = static_cast<int>(invattn::ErrorKind::kData);
constexpr int kUsage = static_cast<int>(invattn::ErrorKind::kUsage);

constexpr const char* kDescription =
    "invattn: attention that can be undone. It builds, trains, inverts and certifies attention blocks y = x + g(x)\n"
    "whose branch g is held under Lipschitz constant 1, so that x can be computed back from y.\n";

constexpr const char* kExitCodes =
    "\nExit codes:\n"
    "  0  done\n"
    "  1  something required is missing (doctor), or an unexpected failure\n"
    "  2  wrong usage: an argument, an option or a configuration\n"
    "  3  a solver did not converge\n"
    "  4  a file or data set is missing or bad\n"
    "  5  another process of the run was lost\n"
    "  130  stopped by Ctrl-C, everything saved\n"
    "\n`invattn SUBCOMMAND --help` explains one subcommand.";

std::vector<std::string> subcommand_names(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* command : tool.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

/// CLI11 would only say that an argument was not expected. The tool's own options take no values, so the first word is the subcommand, and what
/// stands right behind it may name one of its own.
void check_subcommand(const CLI::App& tool, const std::vector<std::string_view>& arguments) {
  const CLI::App* command = &tool;
  auto word = std::find_if(arguments.begin(), arguments.end(), [](std::string_view argument) { return !argument.starts_with('-'); });
  for (; word != arguments.end() && !word->starts_with('-'); ++word) {
    const std::vector<std::string> names = subcommand_names(*command);
    if (names.empty()) return;
    const std::string all = invattn::tool::kSlim ? " `make build` in a clone makes the tool with all subcommands." : "";
    invattn::require(std::find(names.begin(), names.end(), *word) != names.end(), "invattn", "expected the subcommand ",
                     invattn::list_names(*word, names), ", got '", *word, "'. Run with --help to see what each does.", all);
    command = command->get_subcommand(std::string(*word));
  }
}

/// The tool, the subcommand in use, and the one in use of that.
std::vector<const CLI::App*> commands_in_use(const CLI::App& tool) {
  std::vector<const CLI::App*> commands = {&tool};
  while (!commands.back()->get_subcommands().empty()) commands.push_back(commands.back()->get_subcommands().front());
  return commands;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) names.push_back(option->get_name());
  }
  return names;
}

/// " Did you mean --json?", where one option of the subcommand in use is near the first one that was not understood; " It is an option of
/// 'bench train'.", where another subcommand beside it has it.
std::string nearest_option(const CLI::App& tool) {
  const std::vector<const CLI::App*> commands = commands_in_use(tool);
  std::vector<std::string> options;
  for (const CLI::App* command : commands) {
    for (std::string& name : option_names(*command)) options.push_back(std::move(name));
  }
  for (const std::string& word : tool.remaining(true)) {
    if (!word.starts_with('-')) continue;
    if (commands.size() > 2) {
      std::string others;
      for (const CLI::App* other : commands[commands.size() - 2]->get_subcommands([](const CLI::App*) { return true; })) {
        const std::vector<std::string> names = option_names(*other);
        if (std::find(names.begin(), names.end(), word) == names.end()) continue;
        others += (others.empty() ? "" : ", ") + ("'" + other->get_parent()->get_name() + " " + other->get_name() + "'");
      }
      if (!others.empty()) return " " + invattn::printable_lines(word) + " is an option of " + others + ".";
    }
    const std::string near = invattn::nearest_name(word, options);
    if (!near.empty()) return " Did you mean " + near + "?";
  }
  return "";
}

int parse_and_run(CLI::App& tool, int argc, char** argv) {
  try {
    check_subcommand(tool, {argv + 1, argv + argc});
    tool.parse(argc, argv);
    if (tool.get_subcommands().empty()) {
      std::cerr << "error: expected a subcommand.\n\n" << tool.help();
      return kUsage;
    }
    return 0;
  } catch (const CLI::Success& request) {  // --help and --version
    return tool.exit(request);
  } catch (const CLI::RuntimeError& result) {  // a subcommand has said what it had to say and names its exit code
    return result.get_exit_code();
  } catch (const CLI::ParseError& error) {
    std::cerr << "error: " << invattn::printable_lines(error.what()) << "." << nearest_option(tool)
              << " Run with --help to see what is possible.\n";
    return kUsage;
  }
}

bool has_subcommands(std::string_view command) { return command == "density" || command == "detect" || command == "bench"; }

/// The next step where the message has none: those of option structs do not know how they were set.
std::string with_next_step(const invattn::Error& error, int argc, char** argv) {
  std::string text = error.what();
  const std::size_t got = text.find(", got");
  const bool has_one = got == std::string::npos || text.find(". ", got) != std::string::npos || text.find(".\n", got) != std::string::npos;
  if (has_one) return text;
  if (error.exit_code() == kData) return text + " Check the file, or take another copy of it.";
  std::string command = "invattn";
  for (int i = 1; i < std::min(argc, 3) && argv[i][0] != '-' && (i == 1 || has_subcommands(argv[1])); ++i)
    command += " " + std::string(argv[i]);
  return text + " Correct it; `" + command + " --help` says what is possible.";
}

bool is_out_of_memory(const c10::Error& error, const std::string& text) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr || text.find("allocate memory") != std::string::npos ||
         text.find("not enough memory") != std::string::npos || text.find("Storage size calculation overflowed") != std::string::npos ||
         text.find("invalid size, possible overflow") != std::string::npos;
}

int out_of_memory() {
  std::cerr
      << "error: expected what fits into memory, got more than the "
      << invattn::bytes_text(static_cast<double>(invattn::read_memory().available_bytes))
      << " that are free, or than the GPU has. Use fewer or smaller images, or a smaller batch; `invattn doctor` shows what is there.\n";
  return kUsage;
}

int run(int argc, char** argv) {
  try {
    CLI::App tool(kDescription, "invattn");
    tool.set_version_flag("--version", std::string("invattn ") + invattn::kVersion + " (torch " + invattn::kTorchVersion +
                                           (invattn::kBuiltWithCuda ? ", CUDA)" : ", CPU only)"));
    tool.footer("Examples:\n");
    if constexpr (!invattn::tool::kSlim) {
      invattn::tool::add_reconstruct(tool);
      invattn::tool::add_density(tool);
      invattn::tool::add_detect(tool);
      invattn::tool::add_report(tool);
      invattn::tool::add_metrics(tool);
    }
    invattn::tool::add_info(tool);
    if constexpr (!invattn::tool::kSlim) invattn::tool::add_bench(tool);
    invattn::tool::add_doctor(tool);
    tool.footer(tool.get_footer() + kExitCodes);
    return parse_and_run(tool, argc, argv);
  } catch (const invattn::ErrorOfOther& error) {  // which says it
    return error.exit_code();
  } catch (const invattn::ProcessLost& lost) {
    std::cerr << "error: " << invattn::printable_lines(lost.what()) << "\n";
    return invattn::ProcessLost::kExitCode;
  } catch (const invattn::Error& error) {
    std::cerr << "error: " << invattn::printable_lines(with_next_step(error, argc, argv)) << "\n";
    return error.exit_code();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (is_out_of_memory(error, text)) return out_of_memory();
    std::cerr << "unexpected error in torch: " << invattn::printable_lines(text) << "\n";
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::length_error&) {  // more elements than there can be
    return out_of_memory();
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << "error: expected a file or folder that can be used, got '" << error.code().message() << "' for '"
              << invattn::printable(error.path1().string(), 400) << "'. Check its permissions and links, or choose another.\n";
    return kData;
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      std::cerr << "error: expected to start threads, got '" << error.code().message() << "'. Use fewer, by --threads.\n";
      return kUsage;
    }
    std::cerr << "unexpected error of the system: " << invattn::printable_lines(error.what()) << "\n";
  } catch (const std::exception& error) {
    std::cerr << "unexpected error: " << invattn::printable_lines(error.what()) << "\n";
  }
  return kUnexpected;
}

/// A descriptor that is closed would be given to the next file that is opened, and what is printed would go there: into nothing for messages,
/// and for results into what cannot be written, so that it is noticed.
void occupy_standard_descriptors() {
  for (const auto& [descriptor, mode] :
       {std::pair(STDIN_FILENO, O_RDONLY), std::pair(STDOUT_FILENO, O_RDONLY), std::pair(STDERR_FILENO, O_WRONLY)}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", mode);
    if (opened >= 0 && opened != descriptor) {
      ::dup2(opened, descriptor);
      ::close(opened);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is then an error of the write, as a full disk is
  const int code = run(argc, argv);
  errno = 0;
  std::cout.flush();
  if (code == 0 && (std::cout.bad() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    std::cerr << "error: [invattn] expected to write to the standard output, got '"
              << (errno != 0 ? invattn::errno_text(errno) : "a failure") << "'. Check where it leads: a full disk, a closed pipe.\n";
    return kData;
  }
  return code;
}
