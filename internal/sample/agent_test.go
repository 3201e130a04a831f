// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var yield = Question{ID: "yield", Word: "yields", Unit: "kWh", Prefer: "more"}
var price = Question{ID: "price", Word: "costs", Unit: "EUR", Prefer: "less"}

func TestPlanNeedsATopicItKnows(t *testing.T) {
	for topic, want := range map[string]string{
		"Solar panels for a school roof": "",
		"a new coffee machine":           "name one of solar, panel, panels, photovoltaic in it",
		"":                               "name one of solar",
	} {
		p := step(t, asJSON(t, PlanInput{Topic: topic}))
		code := p.Finish(Plan(t.Context(), p, 0))
		if got := left(t, p, messageFile); (code == 0) != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: exit code %d, message %q; want %q", topic, code, got, want)
		}
		if code == 0 && len(leftJSON[PlanOutput](t, p).Questions) != 5 {
			t.Errorf("%q: output %s; want five questions", topic, left(t, p, outputFile))
		}
	}
}

func TestGatherFindsFactsInBothSources(t *testing.T) {
	p := step(t, `{"topic": "solar panels"}`)
	if err := Plan(t.Context(), p, 0); err != nil {
		t.Fatal(err)
	}
	questions := asJSON(t, GatherInput{Questions: leftJSON[PlanOutput](t, p).Questions})
	for source, want := range map[string][]float64{
		"A": {46000, 35500, 38.4, 15, 6},
		"B": {54500, 39800, 40.8, 25, 9},
	} {
		p := step(t, questions)
		if err := Gather(t.Context(), p, source, 0); err != nil {
			t.Fatal(err)
		}
		out := leftJSON[GatherOutput](t, p)
		var got []float64
		for _, f := range out.Facts {
			got = append(got, f.Value)
		}
		if diff := cmp.Diff(want, got); diff != "" || len(out.Missing) > 0 {
			t.Errorf("source %s, missing %v (-want +got):\n%s", source, out.Missing, diff)
		}
	}
	p = step(t, questions)
	if code := p.Finish(Gather(t.Context(), p, "C", 0)); code != 1 || !strings.Contains(left(t, p, messageFile), "give A or B") {
		t.Errorf("source C: exit code %d, message %q", code, left(t, p, messageFile))
	}
}

func TestExtract(t *testing.T) {
	text := "A title.\nIt costs a lot.\nThe small one costs 1,200.50 EUR and yields 7 kWh.\nIt yields 3 MWh.\n"
	got := extract("A", text, []Question{price, yield, {ID: "age", Word: "age", Unit: "years"}})
	want := GatherOutput{
		Source: "A", Title: "A title",
		Facts: []Fact{
			{Question: "price", Value: 1200.5, Sentence: "The small one costs 1,200.50 EUR and yields 7 kWh."},
			{Question: "yield", Value: 7, Sentence: "The small one costs 1,200.50 EUR and yields 7 kWh."},
		},
		Missing: []string{"age"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

func TestCompare(t *testing.T) {
	facts := func(price, yield float64) GatherOutput {
		return GatherOutput{Facts: []Fact{{Question: "price", Value: price}, {Question: "yield", Value: yield}}}
	}
	for name, tc := range map[string]struct {
		a, b       GatherOutput
		wantBetter []string
		wantBest   string
		wantOpen   []string
	}{
		"A is better in both":            {facts(1, 9), facts(2, 8), []string{"A", "A"}, "A", []string{}},
		"B is better in one":             {facts(1, 8), facts(1, 9), []string{"", "B"}, "B", []string{}},
		"one each: the first counts":     {facts(1, 8), facts(2, 9), []string{"A", "B"}, "A", []string{}},
		"no difference":                  {facts(1, 8), facts(1, 8), []string{"", ""}, "", []string{}},
		"what one does not say is open":  {facts(1, 8), GatherOutput{Facts: facts(2, 9).Facts[:1]}, []string{"A"}, "A", []string{"yield"}},
		"what neither says is open, too": {GatherOutput{}, GatherOutput{}, nil, "", []string{"price", "yield"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := compare(CompareInput{Questions: []Question{price, yield}, A: tc.a, B: tc.b})
			var better []string
			for _, r := range got.Rows {
				better = append(better, r.Better)
			}
			if diff := cmp.Diff(tc.wantBetter, better); diff != "" {
				t.Errorf("better (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantOpen, got.Open); diff != "" || got.Best != tc.wantBest {
				t.Errorf("best %q, want %q; open (-want +got):\n%s", got.Best, tc.wantBest, diff)
			}
		})
	}
}

func TestCompareNeedsADifference(t *testing.T) {
	p := step(t, `{"questions": [], "a": {"source":"A","title":"","facts":[],"missing":[]}, "b": {"source":"B","title":"","facts":[],"missing":[]}}`)
	if code := p.Finish(Compare(t.Context(), p, 0)); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

var comparison = Comparison{
	Rows: []Row{
		{Question: "price", Unit: "EUR", A: 46000, B: 54500, Better: "A"},
		{Question: "yield", Unit: "kWh", A: 35500, B: 39800.5, Better: "B"},
		{Question: "warranty", Unit: "years", A: 15, B: 25, Better: "B"},
	},
	Open: []string{"age"},
	Best: "B",
}

func TestDraft(t *testing.T) {
	want := Report{
		Title: "Recommendation: panels",
		Text: `We recommend offer B. It has the better yield and warranty [B]. What speaks for offer A is its price [A].

| question | offer A | offer B | better |
| --- | --- | --- | --- |
| price | 46000 EUR | 54500 EUR | A |
| yield | 35500 kWh | 39800.5 kWh | B |
| warranty | 15 years | 25 years | B |

Not answered by both: age.

The figures are those of the offers, before any grant. Ask for both offers in writing before the order is placed.
`,
	}
	if diff := cmp.Diff(want, draft(DraftInput{Topic: "panels", Comparison: comparison})); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestReviewGoesThroughItsChecklist(t *testing.T) {
	good := draft(DraftInput{Topic: "panels", Comparison: comparison}).Text
	for name, tc := range map[string]struct {
		text       string
		wantFailed []string
	}{
		"a draft of the comparison": {good, nil},
		"too short":                 {"We recommend offer B [A] [B].", []string{"has 40 to 200 words"}},
		"too long":                  {good + strings.Repeat("very ", 200), []string{"has 40 to 200 words"}},
		"a source is not cited":     {strings.ReplaceAll(good, "[A]", ""), []string{"cites both sources"}},
		"the other one recommended": {strings.Replace(good, "offer B", "offer A", 1), []string{"recommends the better source"}},
		"an invented figure":        {good + "It lasts 99 years.", []string{"has no figure of its own"}},
		"a figure spelt otherwise":  {good + "It costs 54,500 EUR.", nil},
		"a number of something":     {good + "Ask 2 people.", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := review(ReviewInput{Draft: Report{Text: tc.text}, Comparison: comparison})
			var failed []string
			for _, c := range got.Checks {
				if !c.Passed {
					failed = append(failed, c.Check)
				}
			}
			if diff := cmp.Diff(tc.wantFailed, failed); diff != "" || got.Approved != (failed == nil) {
				t.Errorf("approved %t, failed (-want +got):\n%s", got.Approved, diff)
			}
		})
	}
}

func TestAgentEffectsSendOnlyWhatIsInOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		kind, input string
		want        string // the effect's body, or part of the message
	}{
		"approved":      {KindPublish, `{"approved":true,"title":"T","text":"x"}`, `{"text":"x","title":"T"}`},
		"not approved":  {KindPublish, `{"approved":false,"title":"T","text":"x"}`, `the report "T" is not approved`},
		"no text":       {KindPublish, `{"approved":true,"title":"T","text":""}`, "no title or no text"},
		"a recipient":   {KindNotify, `{"to":"a@example.com","title":"T","report":1}`, `{"subject":"T","text":"The report is published as number 1.","to":"a@example.com"}`},
		"no address":    {KindNotify, `{"to":"a","title":"T","report":1}`, "not an address"},
		"not published": {KindNotify, `{"to":"a@example.com","title":"T","report":0}`, "not a number of the ledger"},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := NewLedger(atNoon)
			server := httptest.NewServer(Handler(ledger))
			defer server.Close()
			p := step(t, tc.input)
			send := Publish
			if tc.kind == KindNotify {
				send = Notify
			}
			code := p.Finish(send(t.Context(), p, EffectOptions{URL: server.URL}))
			list := ledger.List(Filter{Task: "research"})
			if code != 0 {
				if got := left(t, p, messageFile); code != 1 || !strings.Contains(got, tc.want) || len(list) != 0 {
					t.Errorf("exit code %d, message %q, effects %+v; want 1, %q and none", code, got, list, tc.want)
				}
				return
			}
			want := Entry{Count: 1, Performed: 1, Record: Record{
				Seq: 1, Key: "research-publish-1", Run: "run-1", Task: "research", Step: "publish",
				Kind: tc.kind, Path: pathEffects, Body: json.RawMessage(tc.want), Time: noon,
			}}
			if diff := cmp.Diff([]Entry{want}, list); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
		})
	}
}
