#include "invattn/report/reconstruction/tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "invattn/report/reconstruction/grouping.h"
#include "invattn/report/reconstruction/printed.h"

namespace invattn {
namespace {

using namespace reporting;

ResultRow row_of(const std::string& dataset, const std::string& variant, const std::string& kind, std::int64_t seed) {
  ResultRow row;
  row.dataset = dataset;
  row.height = row.width = 32;
  row.variant = variant;
  row.kind = kind;
  row.seed = seed;
  row.loss = 1.01 + 0.01 * static_cast<double>(seed);
  row.identity_loss = 1.06;
  row.mse = 4e-9;
  row.ssim = 1;
  row.v_score = 100;
  row.lipschitz_max = 0.88 + 0.01 * static_cast<double>(seed);
  row.iterations_max = 12 - seed;
  row.failures = 0;
  row.seconds = 60;
  row.test_images = 1000;
  return row;
}

TEST(Table, ResultsHaveOneLinePerNetworkOverItsSeeds) {
  ResultRow lost = row_of("cifar10", "paper", "gaussian", 0);
  lost.mse = lost.ssim = kNotFinite;
  lost.v_score = 43.4;
  lost.lipschitz_max = 2.8;
  lost.failures = 1569;
  const std::vector<ResultRow> rows = {row_of("cifar10", "guarded", "gaussian", 0), row_of("cifar10", "guarded", "gaussian", 1), lost};
  EXPECT_EQ(to_markdown(every_network(rows)),
            "| data     | variant | kind     |        MSE |       SSIM | V-score |  paper |            loss | identity | constant | "
            "iterations | failures | seconds |\n"
            "|----------|---------|----------|-----------:|-----------:|--------:|-------:|----------------:|---------:|---------:|--------"
            "---:|---------:|--------:|\n"
            "| CIFAR-10 | guarded | gaussian |    4.0e-09 |     1.0000 |  100.00 | 85.625 | 1.0150 ± 0.0071 |   1.0600 |    0.890 |        "
            " 12 |        0 |    60.0 |\n"
            "| CIFAR-10 | paper   | gaussian | not finite | not finite |   43.40 | 85.625 |          1.0100 |   1.0600 |    2.800 |        "
            " 12 |    1,569 |    60.0 |\n");
}

TEST(Table, WithoutPaperFiguresThereIsNoColumnForThem) {
  const std::string text = to_markdown(every_network({row_of("synthetic", "guarded", "gaussian", 0)}));
  EXPECT_EQ(text.find("paper"), std::string::npos) << text;
  EXPECT_EQ(to_markdown(paper_layout({row_of("synthetic", "guarded", "gaussian", 0)}).front()),
            "| kind     | synthetic MSE | synthetic SSIM | synthetic V-score |\n"
            "|----------|--------------:|---------------:|------------------:|\n"
            "| gaussian |       4.0e-09 |         1.0000 |            100.00 |\n");
}

TEST(Table, OfNoRowsHasAHeaderOnly) {
  const std::string text = to_markdown(every_network({}));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(Table, PaperLayoutHasKindsDownAndDataSetsAcross) {
  const std::vector<ResultRow> rows = {row_of("svhn", "guarded", "concatenation", 0), row_of("cifar10", "guarded", "concatenation", 0),
                                       row_of("cifar10", "guarded", "gaussian", 0)};
  const std::vector<Table> tables = paper_layout(rows);
  ASSERT_EQ(tables.size(), 1U);
  EXPECT_EQ(tables.front().name, "reconstruction_guarded");
  EXPECT_EQ(
      to_markdown(tables.front()),
      "| kind          |     CIFAR-10 MSE |  CIFAR-10 SSIM | CIFAR-10 V-score |          SVHN MSE |      SVHN SSIM |    SVHN V-score |\n"
      "|---------------|-----------------:|---------------:|-----------------:|------------------:|---------------:|----------------:|\n"
      "| gaussian      | 4.0e-09 (84.872) | 1.0000 (0.988) |  100.00 (85.625) |                   |                |                 |\n"
      "| concatenation |  4.0e-09 (0.706) | 1.0000 (0.999) |  100.00 (98.437) | 4.0e-09 (171.755) | 1.0000 (0.994) | 100.00 (97.500) |\n");
}

TEST(Table, VariantsAreComparedWhereThereAreSeveral) {
  EXPECT_TRUE(variants_compared({row_of("cifar10", "guarded", "gaussian", 0), row_of("svhn", "paper", "gaussian", 0)}).empty());
  const std::vector<Table> tables =
      variants_compared({row_of("cifar10", "c1 activation", "gaussian", 0), row_of("cifar10", "all six", "gaussian", 0)});
  ASSERT_EQ(tables.size(), 1U);
  EXPECT_EQ(tables.front().name, "variants_cifar10-32x32");
  EXPECT_EQ(to_markdown(tables.front()),
            "| variant       | gaussian loss | gaussian constant | gaussian V-score |\n"
            "|---------------|--------------:|------------------:|-----------------:|\n"
            "| c1 activation |        1.0100 |             0.880 |           100.00 |\n"
            "| all six       |        1.0100 |             0.880 |           100.00 |\n");
}

TEST(Table, NamesCannotBreakOutOfMarkdownOrHtml) {
  const ResultRow row = row_of("synthetic", "a|b\n<script>alert('x')</script>&\"", "gaussian", 0);
  EXPECT_NE(to_markdown(every_network({row})).find("| a\\|b <script>"), std::string::npos) << to_markdown(every_network({row}));
  const std::string html = to_html(every_network({row}));
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"), std::string::npos) << html;
}

TEST(Table, NamesCannotSteerATerminal) {
  const std::string text = to_markdown(every_network({row_of("synthetic",
                                                             "a\x1b[31m\xc2\x9b"
                                                             "2J\xff",
                                                             "gaussian", 0)}));
  EXPECT_NE(text.find("| a\\x1b[31m\\xc2\\x9b2J\\xff |"), std::string::npos) << text;
}

TEST(Table, HtmlGroupsColumnsAndShowsThePapersFigures) {
  const std::string html = to_html(paper_layout({row_of("cifar10", "guarded", "gaussian", 0)}).front());
  EXPECT_NE(html.find("colspan=\"3\">CIFAR-10</th>"), std::string::npos) << html;
  EXPECT_NE(html.find("<td>4.0e-09<span class=\"printed\">84.872</span></td>"), std::string::npos) << html;
}

TEST(Table, NumbersAreShort) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(3.14159e-9), "3.1e-09");
  EXPECT_EQ(short_number(0.12345), "0.123");
  EXPECT_EQ(short_number(84.872), "84.87");
  EXPECT_EQ(short_number(812.51), "812.5");
  EXPECT_EQ(short_number(7e7), "7.0e+07");
  EXPECT_EQ(short_number(kNotFinite), "not finite");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
}

TEST(Table, FiguresOfThePaperAreThoseOfItsTables) {
  EXPECT_EQ(printed_figures({"svhn", 32, 32}, "dot-product")->mse, "508.016");
  EXPECT_EQ(printed_figures({"celeba", 32, 32}, "concatenation")->v_score, "88.021");
  EXPECT_EQ(printed_figures({"celeba", 218, 178}, "concatenation")->mse, "1.555e-6");
  EXPECT_EQ(printed_figures({"celeba", 64, 64}, "concatenation"), nullptr);
  EXPECT_EQ(printed_figures({"synthetic", 32, 32}, "gaussian"), nullptr);
}

TEST(Grouping, KeepsThePapersOrderAndNamesOfUnknownDataLast) {
  std::vector<ResultRow> rows = {row_of("mine", "b", "other", 0), row_of("celeba", "a", "concatenation", 0),
                                 row_of("cifar10", "b", "gaussian", 0)};
  rows[1].height = 218;
  rows[1].width = 178;
  const std::vector<View> views = views_of(rows);
  ASSERT_EQ(views.size(), 3U);
  EXPECT_EQ(views[0].title(), "CIFAR-10");
  EXPECT_EQ(views[1].title(), "CelebA 218x178");
  EXPECT_EQ(views[1].slug(), "celeba-218x178");
  EXPECT_EQ(views[2].title(), "mine");
  EXPECT_EQ(kinds_of(rows), (std::vector<std::string>{"gaussian", "concatenation", "other"}));
  EXPECT_EQ(variants_of(rows), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(slug("Smaller c, more Iterations!"), "smaller-c-more-iterations");
  EXPECT_EQ(slug("../é"), "unnamed");
  const std::string name(5000, 'x');
  EXPECT_LT(slug(name).size(), 120U);
  EXPECT_NE(slug(name), slug(name + "y")) << "two names are two files";
}

}  // namespace
}  // namespace invattn
