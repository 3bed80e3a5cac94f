// Looks at a grammar before llama.cpp does, which writes what is wrong to standard error, follows the rules by recursion
// however deep they nest, and does not come back from some kinds of rules.
#pragma once

#include "internal.hpp"
#include "llama-grammar.h"

#include <algorithm>

namespace pyclover {

class grammar_check {
  public:
    // vocab: nullptr when there is no model yet; a grammar that names tokens by their text cannot be checked then.
    static void run(const llama_vocab * vocab, const char * grammar) {
        grammar_check check(vocab);
        check.parse(grammar);
        check.find_names();
        for (size_t rule = 0; rule < check.rules().size(); rule++) {
            check.visit(rule);
        }
        check.check_optional();
    }

  private:
    static constexpr uint64_t MAX_DEPTH = 2000;       // rules that begin with one another: llama.cpp recurses
    static constexpr uint64_t MAX_WAYS = 4096;        // to go on from one place: each becomes a stack of its own
    static constexpr uint64_t MAX_PATHS = 50'000'000; // through beginnings of rules: llama.cpp walks all of them
    static constexpr uint64_t MAX_OPTIONAL = 8000;    // pairs of optional parts in one row: 126 parts
    static constexpr uint64_t MAX_ALIKE = 200;        // of these, pairs that may begin with the same character: 20 parts

    enum state { UNSEEN, OPEN, DONE };

    using range = std::pair<uint32_t, uint32_t>; // of characters, both ends included

    struct facts {
        state seen = UNSEEN;
        bool empty = false;       // can produce nothing
        uint64_t ways = 0;        // to begin
        uint64_t paths = 1;       // through the rules that it may begin with
        uint64_t depth = 0;       // of these
        size_t at = 0;            // where visit() reads
        bool passed = false;      // all elements of this alternative so far can be empty
        std::vector<range> first; // characters that it can begin with, in order and apart from each other
    };

    explicit grammar_check(const llama_vocab * vocab) : parser(vocab) {}

    const llama_grammar_rules & rules() const { return parser.rules; }

    [[noreturn]] static void fail(const std::string & why) { throw error(PC_BAD_GRAMMAR, "the grammar cannot be used: " + why); }

    static bool ends(const llama_grammar_element & e) { return e.type == LLAMA_GRETYPE_END || e.type == LLAMA_GRETYPE_ALT; }

    void parse(const char * text) {
        const std::string all(text);
        const char * at = text;
        try {
            while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n' || *at == '#') {
                at += *at == '#' ? std::strcspn(at, "\r\n") : 1;
            }
            while (*at != 0) {
                at = parser.parse_rule(at);
            }
        } catch (const assertion &) {
            throw;
        } catch (const std::exception & e) {
            std::string why = e.what();
            // "expecting name at " and all the rest of the text: the line says the same in less
            const size_t mark = why.find(" at ");
            const size_t n_rest = mark == std::string::npos ? 0 : why.size() - mark - 4;
            size_t where = at - text;
            if (mark != std::string::npos && n_rest <= all.size() &&
                all.compare(all.size() - n_rest, n_rest, why, mark + 4, n_rest) == 0) {
                where = all.size() - n_rest;
                const std::string next = all.substr(where, std::min<size_t>(all.find_first_of("\r\n", where) - where, 20));
                why = why.substr(0, mark) + (next.empty() ? " at the end of the line" : " before '" + next + "'");
            }
            fail("line " + std::to_string(1 + std::count(all.begin(), all.begin() + where, '\n')) + ": " + why);
        }
        names.resize(parser.symbol_ids.size());
        for (const auto & [name, id] : parser.symbol_ids) {
            names[id] = name.substr(0, name.find('_')); // parts of a rule are named rule_12
        }
        parser.rules.resize(names.size());
        found.resize(names.size());
    }

    void find_names() const {
        const auto root = parser.symbol_ids.find("root");
        if (root == parser.symbol_ids.end() || rules()[root->second].empty()) {
            fail("it has no rule 'root', with which every text begins");
        }
        for (size_t rule = 0; rule < rules().size(); rule++) {
            if (rules()[rule].empty()) {
                fail("the rule '" + names[rule] + "' is used and not defined");
            }
        }
    }

    // Facts of a rule and of all those it may begin with, without recursion.
    void visit(size_t first) {
        if (found[first].seen == DONE) {
            return;
        }
        std::vector<size_t> todo;
        const auto open = [&](size_t rule) {
            if (todo.size() >= MAX_DEPTH) {
                fail("rules that begin with one another are nested more than " + std::to_string(MAX_DEPTH) + " deep");
            }
            found[rule].seen = OPEN;
            found[rule].passed = true;
            todo.push_back(rule);
        };
        open(first);
        while (!todo.empty()) {
            const size_t rule = todo.back();
            facts & f = found[rule];
            const llama_grammar_element & e = rules()[rule][f.at];
            if (ends(e)) {
                f.empty = f.empty || f.passed;
                f.passed = true;
                f.at++;
                if (e.type == LLAMA_GRETYPE_END) {
                    close(rule);
                    todo.pop_back();
                }
                continue;
            }
            if (f.passed && e.type == LLAMA_GRETYPE_RULE_REF) {
                const facts & part = found[e.value];
                if (part.seen == UNSEEN) {
                    open(e.value);
                    continue;
                }
                if (part.seen == OPEN) {
                    fail("the rule '" + names[e.value] + "' begins with itself (left recursion); write it with * or +");
                }
                f.ways += part.ways;
                f.paths += part.paths;
                f.depth = std::max(f.depth, part.depth + 1);
                f.passed = part.empty;
                f.first.insert(f.first.end(), part.first.begin(), part.first.end());
            } else if (f.passed) {
                add_characters(f.first, &e);
                f.ways++;
                f.passed = false;
            }
            f.at++;
        }
    }

    static void add_characters(std::vector<range> & out, const llama_grammar_element * e) {
        if (e->type == LLAMA_GRETYPE_CHAR_NOT || e->type == LLAMA_GRETYPE_CHAR_ANY) {
            out.emplace_back(0, UINT32_MAX); // more than there are: whether a few are left out matters little
        }
        while (e->type == LLAMA_GRETYPE_CHAR || e->type == LLAMA_GRETYPE_CHAR_ALT) {
            const bool is_range = e[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
            out.emplace_back(e->value, e[is_range].value);
            e += is_range ? 2 : 1;
            if (e->type == LLAMA_GRETYPE_CHAR) {
                break;
            }
        }
    }

    static void put_in_order(std::vector<range> & ranges) {
        std::sort(ranges.begin(), ranges.end());
        std::vector<range> out;
        for (const range & r : ranges) {
            if (out.empty() || r.first > out.back().second) {
                out.push_back(r);
            } else {
                out.back().second = std::max(out.back().second, r.second);
            }
        }
        ranges = std::move(out);
    }

    static bool overlap(const std::vector<range> & a, const std::vector<range> & b) {
        for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
            if (a[i].second >= b[j].first && b[j].second >= a[i].first) {
                return true;
            }
            a[i].second < b[j].second ? i++ : j++;
        }
        return false;
    }

    void close(size_t rule) {
        facts & f = found[rule];
        f.seen = DONE;
        put_in_order(f.first);
        n_paths += f.paths;
        if (f.depth > MAX_DEPTH) {
            fail("rules that begin with one another are nested more than " + std::to_string(MAX_DEPTH) + " deep");
        }
        if (f.ways > MAX_WAYS || n_paths > MAX_PATHS) {
            fail("the rule '" + names[rule] + "' can begin in more than " + std::to_string(MAX_WAYS) + " ways; make it simpler");
        }
    }

    // Many optional parts in a row: the same text can be read in more ways than anyone can wait for.
    void check_optional() const {
        for (size_t rule = 0; rule < rules().size(); rule++) {
            std::vector<uint32_t> row;
            uint64_t n_alike = 0;
            for (const auto & e : rules()[rule]) {
                if (e.type != LLAMA_GRETYPE_RULE_REF || !found[e.value].empty) {
                    row.clear();
                    n_alike = 0;
                    continue;
                }
                for (const uint32_t other : row) {
                    n_alike += overlap(found[e.value].first, found[other].first) ? 1 : 0;
                }
                row.push_back(e.value);
                if (n_alike > MAX_ALIKE) {
                    fail("the rule '" + names[rule] +
                         "' has too many optional parts in a row that can begin with the same "
                         "character; 20 are always possible");
                }
                if (row.size() * row.size() / 2 > MAX_OPTIONAL) {
                    fail("the rule '" + names[rule] + "' has too many optional parts in a row; 100 are always possible");
                }
            }
        }
    }

    llama_grammar_parser parser;
    std::vector<std::string> names;
    std::vector<facts> found;
    uint64_t n_paths = 0;
};

} // namespace pyclover
