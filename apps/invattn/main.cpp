#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>

#include "commands.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/core/version.h"

namespace {

constexpr int kUnexpected = 1;
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
    "  130  stopped by Ctrl-C, everything saved\n"
    "\n`invattn SUBCOMMAND --help` explains one subcommand.";

std::vector<std::string> subcommand_names(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* command : tool.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

/// CLI11 would only say that an argument was not expected. The tool's own options take no values, so the first word is the subcommand.
void check_subcommand(const CLI::App& tool, const std::vector<std::string_view>& arguments) {
  const auto word = std::find_if(arguments.begin(), arguments.end(), [](std::string_view argument) { return !argument.starts_with('-'); });
  if (word == arguments.end()) return;
  const std::vector<std::string> names = subcommand_names(tool);
  invattn::require(std::find(names.begin(), names.end(), *word) != names.end(), "invattn", "expected the subcommand ",
                   invattn::list_names(*word, names), ", got '", *word, "'. Run with --help to see what each does.");
}

/// " Did you mean --json?", where one option of the subcommand in use is near the first one that was not understood.
std::string nearest_option(const CLI::App& tool) {
  std::vector<std::string> options;
  std::vector<const CLI::App*> apps = {&tool};
  for (const CLI::App* command : tool.get_subcommands()) apps.push_back(command);
  for (const CLI::App* app : apps) {
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional()) options.push_back(option->get_name());
    }
  }
  for (const std::string& word : tool.remaining(true)) {
    const std::string near = word.starts_with('-') ? invattn::nearest_name(word, options) : "";
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
    std::cerr << "error: " << error.what() << "." << nearest_option(tool) << " Run with --help to see what is possible.\n";
    return kUsage;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CLI::App tool(kDescription, "invattn");
    tool.set_version_flag("--version", std::string("invattn ") + invattn::kVersion + " (torch " + invattn::kTorchVersion +
                                           (invattn::kBuiltWithCuda ? ", CUDA)" : ", CPU only)"));
    tool.footer("Examples:\n");
    invattn::tool::add_reconstruct(tool);
    invattn::tool::add_density(tool);
    invattn::tool::add_detect(tool);
    invattn::tool::add_report(tool);
    invattn::tool::add_metrics(tool);
    invattn::tool::add_info(tool);
    invattn::tool::add_bench(tool);
    invattn::tool::add_doctor(tool);
    tool.footer(tool.get_footer() + kExitCodes);
    return parse_and_run(tool, argc, argv);
  } catch (const invattn::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return error.exit_code();
  } catch (const c10::Error& error) {
    std::cerr << "unexpected error in torch: " << error.what_without_backtrace() << "\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "error: out of memory. Use fewer or smaller images; `invattn doctor` shows how much memory there is.\n";
  } catch (const std::exception& error) {
    std::cerr << "unexpected error: " << error.what() << "\n";
  }
  return kUnexpected;
}
