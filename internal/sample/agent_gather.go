// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"embed"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed data
var data embed.FS

// Question is something the plan wants to know of each source: a number with a unit,
// in the sentence that holds a word.
type Question struct {
	ID   string `json:"id"`
	Ask  string `json:"ask"`
	Word string `json:"word"`
	Unit string `json:"unit"`
	// Prefer is which answer is better: less or more.
	Prefer string `json:"prefer"`
}

// PlanInput is the input of Plan.
type PlanInput struct {
	Topic string `json:"topic"`
}

// PlanOutput says what to ask of which sources.
type PlanOutput struct {
	Topic     string     `json:"topic"`
	Questions []Question `json:"questions"`
	Sources   []string   `json:"sources"`
}

// Plan turns a topic into questions, by the words that stand in it.
func Plan(ctx context.Context, p Program, work time.Duration) error {
	var in PlanInput
	if err := p.input(&in); err != nil {
		return err
	}
	doc, err := data.ReadFile("data/questions.json")
	if err != nil {
		return failf("%v", err)
	}
	var known struct {
		Words     []string   `json:"words"`
		Sources   []string   `json:"sources"`
		Questions []Question `json:"questions"`
	}
	if err := json.Unmarshal(doc, &known); err != nil {
		return failf("the embedded questions: %v", err)
	}
	words := strings.Fields(strings.ToLower(in.Topic))
	if !slices.ContainsFunc(words, func(w string) bool { return slices.Contains(known.Words, w) }) {
		return failf("no questions are known for the topic %q: name one of %s in it", in.Topic, strings.Join(known.Words, ", "))
	}
	if err := p.work(ctx, work); err != nil {
		return err
	}
	return p.output(PlanOutput{Topic: in.Topic, Questions: known.Questions, Sources: known.Sources})
}

// GatherInput is the input of Gather.
type GatherInput struct {
	Questions []Question `json:"questions"`
}

// Fact is a source's answer to a question.
type Fact struct {
	Question string  `json:"question"`
	Value    float64 `json:"value"`
	Sentence string  `json:"sentence"`
}

// GatherOutput is what a source says.
type GatherOutput struct {
	Source string `json:"source"`
	Title  string `json:"title"`
	Facts  []Fact `json:"facts"`
	// Missing holds the questions that the source does not answer.
	Missing []string `json:"missing"`
}

// Gather reads the answers to the questions out of a source's text.
func Gather(ctx context.Context, p Program, source string, work time.Duration) error {
	var in GatherInput
	if err := p.input(&in); err != nil {
		return err
	}
	if source != "A" && source != "B" {
		return failf("--source %q is not known: give A or B", source)
	}
	text, err := data.ReadFile("data/source-" + strings.ToLower(source) + ".txt")
	if err != nil {
		return failf("%v", err)
	}
	if err := p.work(ctx, work); err != nil {
		return err
	}
	return p.output(extract(source, string(text), in.Questions))
}

// extract looks each question up in the text. The text's first sentence is its title.
func extract(source, text string, questions []Question) GatherOutput {
	sentences := strings.Split(strings.TrimSpace(text), "\n")
	out := GatherOutput{Source: source, Title: strings.TrimSuffix(sentences[0], "."), Facts: []Fact{}, Missing: []string{}}
	for _, q := range questions {
		i := slices.IndexFunc(sentences, func(s string) bool {
			_, ok := number(s, q.Unit)
			return ok && slices.Contains(words(s), q.Word)
		})
		if i < 0 {
			out.Missing = append(out.Missing, q.ID)
			continue
		}
		value, _ := number(sentences[i], q.Unit)
		out.Facts = append(out.Facts, Fact{Question: q.ID, Value: value, Sentence: sentences[i]})
	}
	return out
}

// words splits a text into words without punctuation, in lower case.
func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return strings.ContainsRune(" \n\t.,;:!?()|[]", r) })
}

var numbers = regexp.MustCompile(`([0-9][0-9,]*(?:\.[0-9]+)?) ([A-Za-z]+)`)

// number is the first number in the text that stands before the unit.
func number(text, unit string) (float64, bool) {
	for _, m := range numbers.FindAllStringSubmatch(text, -1) {
		if m[2] != unit {
			continue
		}
		if v, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64); err == nil {
			return v, true
		}
	}
	return 0, false
}
