// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// Kinds of the agent's effects.
const (
	KindPublish = "publish"
	KindNotify  = "notify"
)

// PublishInput is the input of Publish.
type PublishInput struct {
	Approved bool   `json:"approved"`
	Title    string `json:"title"`
	Text     string `json:"text"`
}

// Publish puts an approved report into the ledger, and leaves the record as output.
func Publish(ctx context.Context, p Program, o EffectOptions) error {
	var in PublishInput
	if err := p.input(&in); err != nil {
		return err
	}
	if !in.Approved {
		return failf("the report %q is not approved: the review's output says what to mend", in.Title)
	}
	if in.Title == "" || in.Text == "" {
		return failf("the report has no title or no text: give both in the step's input")
	}
	o.Kind = KindPublish
	return p.effectOf(ctx, o, Report{Title: in.Title, Text: in.Text})
}

// NotifyInput is the input of Notify.
type NotifyInput struct {
	To    string `json:"to"`
	Title string `json:"title"`
	// Report is the number under which the ledger published it.
	Report int64 `json:"report"`
}

// Message is what Notify sends.
type Message struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// Notify tells a recipient that a report is published, and leaves the record as
// output.
func Notify(ctx context.Context, p Program, o EffectOptions) error {
	var in NotifyInput
	if err := p.input(&in); err != nil {
		return err
	}
	if !strings.Contains(in.To, "@") {
		return failf("to is %q, not an address: give one such as facilities@example.com in the step's input", in.To)
	}
	if in.Report < 1 {
		return failf("report is %d, not a number of the ledger: give the publishing step's output.seq in the step's input", in.Report)
	}
	o.Kind = KindNotify
	return p.effectOf(ctx, o, Message{
		To:      in.To,
		Subject: in.Title,
		Text:    fmt.Sprintf("The report is published as number %d.", in.Report),
	})
}

func (p Program) effectOf(ctx context.Context, o EffectOptions, body any) error {
	doc, err := json.Marshal(body)
	if err != nil {
		return failf("encoding the effect: %v", err)
	}
	record, err := p.effect(ctx, o, doc)
	if err != nil {
		return err
	}
	if err := p.work(ctx, o.Work); err != nil {
		return err
	}
	return p.rawOutput(record)
}
