// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CompareInput is the input of Compare: the questions and what both sources say.
type CompareInput struct {
	Questions []Question   `json:"questions"`
	A         GatherOutput `json:"a"`
	B         GatherOutput `json:"b"`
}

// Row is both answers to a question.
type Row struct {
	Question string  `json:"question"`
	Unit     string  `json:"unit"`
	A        float64 `json:"a"`
	B        float64 `json:"b"`
	// Better is A or B, or empty where both are the same.
	Better string `json:"better,omitempty"`
}

// Comparison is the answers side by side.
type Comparison struct {
	Rows []Row `json:"rows"`
	// Open holds the questions that not both sources answer.
	Open []string `json:"open"`
	// Best is the source with more of the better answers; where they have as many, the
	// one with the better answer to the first question.
	Best string `json:"best"`
}

// Compare puts the sources' answers side by side.
func Compare(ctx context.Context, p Program, work time.Duration) error {
	var in CompareInput
	if err := p.input(&in); err != nil {
		return err
	}
	out := compare(in)
	if out.Best == "" {
		return failf("sources A and B do not differ in any of %d questions: gather from other sources", len(in.Questions))
	}
	if err := p.work(ctx, work); err != nil {
		return err
	}
	return p.output(out)
}

func compare(in CompareInput) Comparison {
	out := Comparison{Rows: []Row{}, Open: []string{}}
	lead := 0
	for _, q := range in.Questions {
		a, inA := answerTo(q.ID, in.A.Facts)
		b, inB := answerTo(q.ID, in.B.Facts)
		if !inA || !inB {
			out.Open = append(out.Open, q.ID)
			continue
		}
		row := Row{Question: q.ID, Unit: q.Unit, A: a, B: b}
		switch {
		case a == b:
		case (a < b) == (q.Prefer == "less"):
			row.Better, lead = "A", lead+1
		default:
			row.Better, lead = "B", lead-1
		}
		out.Rows = append(out.Rows, row)
	}
	out.Best = best(lead, out.Rows)
	return out
}

// best is A where it leads, B where A trails, and otherwise who has the first row
// that somebody has.
func best(lead int, rows []Row) string {
	if lead > 0 {
		return "A"
	}
	if lead < 0 {
		return "B"
	}
	for _, r := range rows {
		if r.Better != "" {
			return r.Better
		}
	}
	return ""
}

func answerTo(question string, facts []Fact) (float64, bool) {
	for _, f := range facts {
		if f.Question == question {
			return f.Value, true
		}
	}
	return 0, false
}

// DraftInput is the input of Draft.
type DraftInput struct {
	Topic      string     `json:"topic"`
	Comparison Comparison `json:"comparison"`
}

// Report is a recommendation.
type Report struct {
	Title string `json:"title"`
	Text  string `json:"text"`
}

// Draft writes a recommendation out of a comparison.
func Draft(ctx context.Context, p Program, work time.Duration) error {
	var in DraftInput
	if err := p.input(&in); err != nil {
		return err
	}
	if err := p.work(ctx, work); err != nil {
		return err
	}
	return p.output(draft(in))
}

func draft(in DraftInput) Report {
	c := in.Comparison
	other := map[string]string{"A": "B", "B": "A"}[c.Best]
	var text strings.Builder
	fmt.Fprintf(&text, "We recommend offer %s. It has the better %s [%s].", c.Best, list(won(c.Rows, c.Best)), c.Best)
	if lost := won(c.Rows, other); len(lost) > 0 {
		fmt.Fprintf(&text, " What speaks for offer %s is its %s [%s].", other, list(lost), other)
	}
	text.WriteString("\n\n| question | offer A | offer B | better |\n| --- | --- | --- | --- |\n")
	for _, r := range c.Rows {
		fmt.Fprintf(&text, "| %s | %s %s | %s %s | %s |\n", r.Question, format(r.A), r.Unit, format(r.B), r.Unit, r.Better)
	}
	if len(c.Open) > 0 {
		fmt.Fprintf(&text, "\nNot answered by both: %s.\n", list(c.Open))
	}
	text.WriteString("\nThe figures are those of the offers, before any grant. Ask for both offers in writing before the order is placed.\n")
	return Report{Title: "Recommendation: " + in.Topic, Text: text.String()}
}

func won(rows []Row, source string) []string {
	var ids []string
	for _, r := range rows {
		if r.Better == source {
			ids = append(ids, r.Question)
		}
	}
	return ids
}

// list joins names as a sentence does: a, b and c.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func format(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// ReviewInput is the input of Review: the draft, and what it must be true to.
type ReviewInput struct {
	Draft      Report     `json:"draft"`
	Comparison Comparison `json:"comparison"`
}

// Check is one point of the review.
type Check struct {
	Check  string `json:"check"`
	Passed bool   `json:"passed"`
	// Found is what the review saw.
	Found string `json:"found"`
}

// ReviewOutput says whether the report may go out.
type ReviewOutput struct {
	Approved bool    `json:"approved"`
	Checks   []Check `json:"checks"`
}

// Lengths of a report, in words.
const (
	minWords = 40
	maxWords = 200
)

// Review goes through a checklist. A draft that does not pass is a result, not a
// failure of the step: Publish is what refuses it.
func Review(ctx context.Context, p Program, work time.Duration) error {
	var in ReviewInput
	if err := p.input(&in); err != nil {
		return err
	}
	if err := p.work(ctx, work); err != nil {
		return err
	}
	return p.output(review(in))
}

func review(in ReviewInput) ReviewOutput {
	text := in.Draft.Text
	n := len(words(text))
	cites := slices.DeleteFunc([]string{"[A]", "[B]"}, func(c string) bool { return !strings.Contains(text, c) })
	strange := unknownFigures(text, in.Comparison.Rows)
	checks := []Check{
		{Check: fmt.Sprintf("has %d to %d words", minWords, maxWords), Passed: n >= minWords && n <= maxWords, Found: fmt.Sprintf("%d words", n)},
		{Check: "cites both sources", Passed: len(cites) == 2, Found: strings.Join(cites, " ")},
		{Check: "recommends the better source", Passed: strings.Contains(text, "recommend offer "+in.Comparison.Best), Found: "better: " + in.Comparison.Best},
		{Check: "has no figure of its own", Passed: len(strange) == 0, Found: strings.Join(strange, ", ")},
	}
	approved := !slices.ContainsFunc(checks, func(c Check) bool { return !c.Passed })
	return ReviewOutput{Approved: approved, Checks: checks}
}

// unknownFigures are the figures with a unit that no row holds.
func unknownFigures(text string, rows []Row) []string {
	known := map[string]bool{}
	units := map[string]bool{}
	for _, r := range rows {
		units[r.Unit] = true
		known[format(r.A)+" "+r.Unit] = true
		known[format(r.B)+" "+r.Unit] = true
	}
	var strange []string
	for _, m := range numbers.FindAllStringSubmatch(text, -1) {
		figure := strings.ReplaceAll(m[1], ",", "") + " " + m[2]
		if units[m[2]] && !known[figure] {
			strange = append(strange, m[0])
		}
	}
	return strange
}
