// Facts, asked of Azure's Service Bus SDK for Go: `client FACTS SETTINGS [part of a title]`.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"reflect"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	bus "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"
	"github.com/coder/websocket"
)

const (
	long    = 20 * time.Second
	short   = time.Second
	workers = 24
)

type table = map[string]any

type fact struct {
	Title string  `json:"title"`
	Steps []table `json:"steps"`
}

var settings struct {
	Host      string            `json:"host"`
	Port      int               `json:"port"`
	Authority string            `json:"authority"`
	Strings   map[string]string `json:"strings"`
}

// A step for which the SDK has no call.
type impossible string

func (what impossible) Error() string { return string(what) }

// What receivers with and without a session have in common.
type receiver interface {
	ReceiveMessages(context.Context, int, *bus.ReceiveMessagesOptions) ([]*bus.ReceivedMessage, error)
	PeekMessages(context.Context, int, *bus.PeekMessagesOptions) ([]*bus.ReceivedMessage, error)
	ReceiveDeferredMessages(context.Context, []int64, *bus.ReceiveDeferredMessagesOptions) ([]*bus.ReceivedMessage, error)
	CompleteMessage(context.Context, *bus.ReceivedMessage, *bus.CompleteMessageOptions) error
	AbandonMessage(context.Context, *bus.ReceivedMessage, *bus.AbandonMessageOptions) error
	DeferMessage(context.Context, *bus.ReceivedMessage, *bus.DeferMessageOptions) error
	DeadLetterMessage(context.Context, *bus.ReceivedMessage, *bus.DeadLetterOptions) error
	Close(context.Context) error
}

type held struct {
	by       receiver
	messages []*bus.ReceivedMessage
}

// One fact under way: its clients, and what its steps have named.
type underWay struct {
	ctx       context.Context
	client    *bus.Client
	clients   []*bus.Client
	senders   map[string]*bus.Sender
	receivers map[string]*bus.Receiver
	held      map[string]held
	sessions  map[string]*bus.SessionReceiver
	numbers   map[string][]int64
}

func trusted() *tls.Config {
	pem, _ := os.ReadFile(settings.Authority)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool}
}

func (f *underWay) connect(way string) error {
	options := &bus.ClientOptions{TLSConfig: trusted(), RetryOptions: bus.RetryOptions{MaxRetries: -1}}
	if way == "tls" {
		options.CustomEndpoint = fmt.Sprintf("%s:%d", settings.Host, settings.Port)
	}
	if way == "websocket" {
		options.NewWebSocketConn = func(ctx context.Context, args bus.NewWebSocketConnArgs) (net.Conn, error) {
			over := &http.Client{Transport: &http.Transport{TLSClientConfig: trusted()}}
			conn, _, err := websocket.Dial(ctx, args.Host, &websocket.DialOptions{Subprotocols: []string{"amqp"}, HTTPClient: over})
			if err != nil {
				return nil, err
			}
			return websocket.NetConn(context.Background(), conn, websocket.MessageBinary), nil
		}
	}
	client, err := bus.NewClientFromConnectionString(settings.Strings[way], options)
	if err != nil {
		return err
	}
	f.client, f.clients = client, append(f.clients, client)
	f.senders, f.receivers = map[string]*bus.Sender{}, map[string]*bus.Receiver{}
	return nil
}

func administration() (*admin.Client, error) {
	over := &http.Client{Transport: &http.Transport{TLSClientConfig: trusted()}}
	return admin.NewClientFromConnectionString(settings.Strings["plain"], &admin.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: over, Retry: policy.RetryOptions{MaxRetries: -1}},
	})
}

// What the table calls an error. This SDK has codes of its own for some, and the protocol's for the others.
func nameOf(err error) string {
	var own *bus.Error
	if errors.Is(err, bus.ErrMessageTooLarge) {
		return "MessageSizeExceeded"
	}
	// Its text alone says that an entity is there, and a message is not.
	if strings.Contains(err.Error(), "The message does not exist") {
		return "MessageNotFound"
	}
	if errors.As(err, &own) {
		switch own.Code {
		case bus.CodeLockLost:
			return "MessageLockLost"
		case bus.CodeNotFound:
			return "EntityNotFound"
		case bus.CodeTimeout:
			return "ServiceTimeout"
		case bus.CodeUnauthorizedAccess:
			return "Unauthorized"
		}
	}
	var answer *azcore.ResponseError
	if errors.As(err, &answer) {
		return map[int]string{404: "EntityNotFound", 409: "EntityAlreadyExists", 400: "InvalidRule"}[answer.StatusCode]
	}
	for part, name := range map[string]string{
		"session-cannot-be-locked": "SessionCannotBeLocked", "message-not-found": "MessageNotFound",
		"entity-disabled": "EntityDisabled", "resource-limit-exceeded": "QuotaExceeded",
		"message-size-exceeded": "MessageSizeExceeded", "not-allowed": "InvalidOperation",
		"amqp:not-found": "EntityNotFound",
	} {
		if strings.Contains(err.Error(), part) {
			return name
		}
	}
	var protocol *amqp.Error
	if errors.As(err, &protocol) {
		return string(protocol.Condition)
	}
	return "?"
}

func text(step table, name string) string { value, _ := step[name].(string); return value }

func pointer(form table, name string) *string {
	if value, there := form[name].(string); there {
		return &value
	}
	return nil
}

func seconds(value any) time.Duration {
	number, _ := value.(float64)
	return time.Duration(number * float64(time.Second))
}

func messagesOf(step table) []*bus.Message {
	var made []*bus.Message
	for _, one := range step["messages"].([]any) {
		form := one.(table)
		body := text(form, "body")
		if times, there := form["times"].(float64); there {
			body = strings.Repeat(text(form, "repeat"), int(times))
		}
		message := &bus.Message{
			Body: []byte(body), MessageID: pointer(form, "id"), Subject: pointer(form, "subject"),
			CorrelationID: pointer(form, "correlation"), To: pointer(form, "to"), ReplyTo: pointer(form, "replyTo"),
			ReplyToSessionID: pointer(form, "replyToSession"), ContentType: pointer(form, "contentType"),
			PartitionKey: pointer(form, "partitionKey"), SessionID: pointer(form, "session"),
		}
		message.ApplicationProperties, _ = form["properties"].(table)
		if value, there := form["ttl"]; there {
			ttl := seconds(value)
			message.TimeToLive = &ttl
		}
		if value, there := form["scheduled"]; there {
			at := time.Now().Add(seconds(value))
			message.ScheduledEnqueueTime = &at
		}
		made = append(made, message)
	}
	return made
}

func value(of *string) any {
	if of == nil {
		return nil
	}
	return *of
}

func formsOf(messages []*bus.ReceivedMessage) any {
	forms := []any{}
	for _, m := range messages {
		form := table{
			"body": string(m.Body), "length": len(m.Body), "id": m.MessageID, "subject": value(m.Subject),
			"correlation": value(m.CorrelationID), "to": value(m.To), "replyTo": value(m.ReplyTo),
			"replyToSession": value(m.ReplyToSessionID), "contentType": value(m.ContentType),
			"partitionKey": value(m.PartitionKey), "session": value(m.SessionID), "properties": m.ApplicationProperties,
			"reason": value(m.DeadLetterReason), "description": value(m.DeadLetterErrorDescription),
			"source": value(m.DeadLetterSource), "count": int(m.DeliveryCount) - 1,
			"state": []string{"active", "deferred", "scheduled"}[m.State],
		}
		if m.SequenceNumber != nil {
			form["number"] = *m.SequenceNumber
		}
		if m.TimeToLive != nil {
			form["ttl"] = m.TimeToLive.Seconds()
		}
		forms = append(forms, form)
	}
	return forms
}

func (f *underWay) sender(to string) (*bus.Sender, error) {
	if f.senders[to] == nil {
		sender, err := f.client.NewSender(to, nil)
		if err != nil {
			return nil, err
		}
		f.senders[to] = sender
	}
	return f.senders[to], nil
}

func (f *underWay) receiver(step table) (receiver, error) {
	if name := text(step, "session"); name != "" {
		return f.sessions[name], nil
	}
	from, mode := text(step, "from"), text(step, "mode")
	if f.receivers[from+mode] == nil {
		options := &bus.ReceiverOptions{}
		if mode == "delete" {
			options.ReceiveMode = bus.ReceiveModeReceiveAndDelete
		}
		base, sub, _ := strings.Cut(from, "/$")
		if sub != "" {
			options.SubQueue = bus.SubQueueDeadLetter
		}
		topic, subscription, of := strings.Cut(base, "/Subscriptions/")
		var made *bus.Receiver
		var err error
		if of {
			made, err = f.client.NewReceiverForSubscription(topic, subscription, options)
		} else {
			made, err = f.client.NewReceiverForQueue(topic, options)
		}
		if err != nil {
			return nil, err
		}
		f.receivers[from+mode] = made
	}
	return f.receivers[from+mode], nil
}

func (f *underWay) receive(step table) (any, error) {
	by, err := f.receiver(step)
	if err != nil {
		return nil, err
	}
	expected, _ := step["see"].([]any)
	count, wait := max(len(expected), 1), long
	if len(expected) == 0 {
		wait = short
	}
	ctx, cancel := context.WithTimeout(f.ctx, wait)
	defer cancel()
	found := []*bus.ReceivedMessage{}
	for len(found) < count {
		some, err := by.ReceiveMessages(ctx, count-len(found), nil)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	f.held[text(step, "as")] = held{by, found}
	return formsOf(found), nil
}

func (f *underWay) accept(step table) (any, error) {
	if _, there := step["seconds"]; there {
		return nil, impossible("a wait for a session that the service ends: its length is fixed")
	}
	ctx, cancel := context.WithTimeout(f.ctx, long)
	defer cancel()
	topic, subscription, of := strings.Cut(text(step, "from"), "/Subscriptions/")
	var made *bus.SessionReceiver
	var err error
	switch session := text(step, "session"); {
	case session != "" && of:
		made, err = f.client.AcceptSessionForSubscription(ctx, topic, subscription, session, nil)
	case session != "":
		made, err = f.client.AcceptSessionForQueue(ctx, topic, session, nil)
	case of:
		made, err = f.client.AcceptNextSessionForSubscription(ctx, topic, subscription, nil)
	default:
		made, err = f.client.AcceptNextSessionForQueue(ctx, topic, nil)
	}
	if err != nil {
		return nil, err
	}
	f.sessions[text(step, "as")] = made
	return made.SessionID(), nil
}

func (f *underWay) settle(step table) error {
	if _, there := step["transaction"]; there {
		return impossible("transactions")
	}
	properties, _ := step["properties"].(table)
	of := f.held[text(step, "messages")]
	for _, m := range of.messages {
		var err error
		switch text(step, "do") {
		case "complete":
			err = of.by.CompleteMessage(f.ctx, m, nil)
		case "abandon":
			err = of.by.AbandonMessage(f.ctx, m, &bus.AbandonMessageOptions{PropertiesToModify: properties})
		case "defer":
			err = of.by.DeferMessage(f.ctx, m, &bus.DeferMessageOptions{PropertiesToModify: properties})
		case "dead-letter":
			err = of.by.DeadLetterMessage(f.ctx, m, &bus.DeadLetterOptions{
				Reason: pointer(step, "reason"), ErrorDescription: pointer(step, "description"), PropertiesToModify: properties,
			})
		case "renew":
			err = of.by.(*bus.Receiver).RenewMessageLock(f.ctx, m, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func optionsOf(step table, properties *admin.QueueProperties) *admin.QueueProperties {
	options, _ := step["options"].(table)
	if lock, there := options["lock"].(float64); there {
		text := fmt.Sprintf("PT%dS", int(lock))
		properties.LockDuration = &text
	}
	if deliveries, there := options["deliveries"].(float64); there {
		number := int32(deliveries)
		properties.MaxDeliveryCount = &number
	}
	if session, there := options["session"].(bool); there {
		properties.RequiresSession = &session
	}
	return properties
}

func ruleOf(step table) *admin.CreateRuleOptions {
	rule := step["rule"].(table)
	made := &admin.CreateRuleOptions{Name: pointer(rule, "name")}
	if sql := text(rule, "sql"); sql != "" {
		made.Filter = &admin.SQLFilter{Expression: sql}
	} else {
		properties, _ := rule["properties"].(table)
		made.Filter = &admin.CorrelationFilter{Subject: pointer(rule, "subject"), ApplicationProperties: properties}
	}
	if action := text(rule, "action"); action != "" {
		made.Action = &admin.SQLAction{Expression: action}
	}
	return made
}

func (f *underWay) administer(step table) (any, error) {
	client, err := administration()
	if err != nil {
		return nil, err
	}
	name, topic, subscription := text(step, "name"), text(step, "topic"), text(step, "subscription")
	switch text(step, "do") {
	case "add-rule", "create-rule":
		_, err = client.CreateRule(f.ctx, topic, subscription, ruleOf(step))
	case "remove-rule", "delete-rule":
		_, err = client.DeleteRule(f.ctx, topic, subscription, name, nil)
	case "rules", "admin-rules":
		names := []any{}
		for pager := client.NewListRulesPager(topic, subscription, nil); pager.More(); {
			page, err := pager.NextPage(f.ctx)
			if err != nil {
				return nil, err
			}
			for _, rule := range page.Rules {
				names = append(names, rule.Name)
			}
		}
		sort.Slice(names, func(a, b int) bool { return names[a].(string) < names[b].(string) })
		return names, nil
	case "create-queue":
		_, err = client.CreateQueue(f.ctx, name, &admin.CreateQueueOptions{Properties: optionsOf(step, &admin.QueueProperties{})})
	case "get-queue":
		queue, err := client.GetQueue(f.ctx, name, nil)
		if err != nil || queue == nil {
			return nil, err
		}
		lock, err := time.ParseDuration(strings.ToLower(strings.TrimPrefix(*queue.LockDuration, "PT")))
		return table{"lock": lock.Seconds(), "deliveries": *queue.MaxDeliveryCount, "session": *queue.RequiresSession}, err
	case "update-queue":
		queue, err := client.GetQueue(f.ctx, name, nil)
		if err != nil {
			return nil, err
		}
		properties := &admin.QueueProperties{}
		if queue != nil {
			properties = &queue.QueueProperties
		}
		_, err = client.UpdateQueue(f.ctx, name, *optionsOf(step, properties), nil)
		return nil, err
	case "delete-queue":
		_, err = client.DeleteQueue(f.ctx, name, nil)
	case "queue-exists":
		queue, err := client.GetQueue(f.ctx, name, nil)
		return queue != nil, err
	case "create-topic":
		_, err = client.CreateTopic(f.ctx, name, nil)
	case "delete-topic":
		_, err = client.DeleteTopic(f.ctx, name, nil)
	case "create-subscription":
		_, err = client.CreateSubscription(f.ctx, topic, name, nil)
	case "counts":
		told, err := client.GetQueueRuntimeProperties(f.ctx, name, nil)
		if err != nil {
			return nil, err
		}
		return table{"active": told.ActiveMessageCount, "dead": told.DeadLetterMessageCount, "scheduled": told.ScheduledMessageCount}, nil
	default:
		return nil, impossible(text(step, "do"))
	}
	return nil, err
}

func (f *underWay) take(step table) (any, error) {
	session := f.sessions[text(step, "session")]
	switch text(step, "do") {
	case "client":
		return nil, f.connect(text(step, "by"))
	case "wait":
		time.Sleep(seconds(step["seconds"]))
		return nil, nil
	case "send", "schedule", "cancel":
		return nil, f.give(step)
	case "receive":
		return f.receive(step)
	case "peek":
		by, err := f.receiver(step)
		if err != nil {
			return nil, err
		}
		first := int64(1)
		found, err := by.PeekMessages(f.ctx, 20, &bus.PeekMessagesOptions{FromSequenceNumber: &first})
		return formsOf(found), err
	case "receive-deferred":
		by, err := f.receiver(step)
		if err != nil {
			return nil, err
		}
		var numbers []int64
		for _, m := range f.held[text(step, "messages")].messages {
			numbers = append(numbers, *m.SequenceNumber)
		}
		found, err := by.ReceiveDeferredMessages(f.ctx, numbers, nil)
		f.held[text(step, "as")] = held{by, found}
		return formsOf(found), err
	case "complete", "abandon", "defer", "dead-letter", "renew":
		return nil, f.settle(step)
	case "accept":
		return f.accept(step)
	case "get-state":
		state, err := session.GetSessionState(f.ctx, nil)
		if state == nil {
			return nil, err
		}
		return string(state), err
	case "set-state":
		return nil, session.SetSessionState(f.ctx, []byte(text(step, "state")), nil)
	case "renew-session":
		return nil, session.RenewSessionLock(f.ctx, nil)
	case "close":
		return nil, session.Close(f.ctx)
	}
	return f.administer(step)
}

func (f *underWay) give(step table) error {
	if _, there := step["transaction"]; there {
		return impossible("transactions")
	}
	sender, err := f.sender(text(step, "to"))
	if err != nil {
		return err
	}
	if text(step, "do") == "cancel" {
		return sender.CancelScheduledMessages(f.ctx, f.numbers[text(step, "numbers")], nil)
	}
	messages := messagesOf(step)
	if text(step, "do") == "schedule" {
		numbers, err := sender.ScheduleMessages(f.ctx, messages, time.Now().Add(seconds(step["seconds"])), nil)
		f.numbers[text(step, "as")] = numbers
		return err
	}
	if len(messages) == 1 {
		return sender.SendMessage(f.ctx, messages[0], nil)
	}
	batch, err := sender.NewMessageBatch(f.ctx, nil)
	if err != nil {
		return err
	}
	for _, message := range messages {
		if err := batch.AddMessage(message, nil); err != nil {
			return err
		}
	}
	return sender.SendMessageBatch(f.ctx, batch, nil)
}

// Of maps and messages only what the table names is compared.
func holds(expected, seen any) bool {
	switch expected := expected.(type) {
	case []any:
		list, is := seen.([]any)
		if !is || len(list) != len(expected) {
			return false
		}
		for n := range expected {
			if !holds(expected[n], list[n]) {
				return false
			}
		}
		return true
	case table:
		of, is := seen.(table)
		if !is {
			return false
		}
		for name := range expected {
			if !holds(expected[name], of[name]) {
				return false
			}
		}
		return true
	case float64:
		number := reflect.ValueOf(seen)
		return number.IsValid() && number.CanConvert(reflect.TypeOf(expected)) && number.Convert(reflect.TypeOf(expected)).Float() == expected
	}
	return expected == seen
}

func (f *underWay) check(step table) error {
	seen, err := f.take(step)
	fails := text(step, "fails")
	var lacks impossible
	switch {
	case errors.As(err, &lacks):
		return err
	case err != nil && fails == "":
		return err
	// One code stands for the locks of messages and sessions.
	case err != nil && nameOf(err) == "MessageLockLost" && fails == "SessionLockLost":
		return nil
	case err != nil && nameOf(err) != fails:
		return fmt.Errorf("expected %s, got %s: %w", fails, nameOf(err), err)
	case err == nil && fails != "":
		return fmt.Errorf("expected %s of %s, got %.500v", fails, step["do"], seen)
	}
	if expected, there := step["see"]; there && fails == "" && !holds(expected, seen) {
		told, _ := json.Marshal([]any{expected, seen})
		return fmt.Errorf("%s: expected and got %.1000s", step["do"], told)
	}
	return nil
}

// Takes the steps of a fact; returns what is printed of it.
func ask(one fact) table {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	f := &underWay{ctx: ctx, held: map[string]held{}, sessions: map[string]*bus.SessionReceiver{}, numbers: map[string][]int64{}}
	defer func() {
		for _, client := range f.clients {
			_ = client.Close(ctx)
		}
	}()
	err := f.connect("plain")
	for _, step := range one.Steps {
		if err == nil {
			err = f.check(step)
		}
	}
	var lacks impossible
	if errors.As(err, &lacks) {
		return table{"title": one.Title, "impossible": string(lacks)}
	}
	if err != nil {
		return table{"title": one.Title, "ok": false, "why": err.Error()}
	}
	return table{"title": one.Title, "ok": true}
}

func main() {
	var facts []fact
	for n, into := range []any{&facts, &settings} {
		text, err := os.ReadFile(os.Args[n+1])
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	part := strings.Join(os.Args[3:], " ")
	work := make(chan fact)
	var group sync.WaitGroup
	var printing sync.Mutex
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for one := range work {
				line, _ := json.Marshal(ask(one))
				printing.Lock()
				fmt.Println(string(line))
				printing.Unlock()
			}
		}()
	}
	for _, one := range facts {
		if strings.Contains(one.Title, part) {
			work <- one
		}
	}
	close(work)
	group.Wait()
}
