package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/internal/fleet"
)

// Agents answer requests on subjects of their node. So an agent needs no permission to write to inboxes, by which it could forge
// messages of NATS itself, such as leases. NATS could also allow each receiver of a message to answer it, but the sender of a
// message names any subject for that: a client that may receive its own messages could write everywhere.

// answerPrefix is the beginning of the subjects on which the agent of a node answers.
func (b *Bus) answerPrefix(node string) string {
	return b.subject("answer", cmp.Or(node, noNode)) + "."
}

// newAnswer returns a subject for the answers to one router's requests to a worker's agent.
func (b *Bus) newAnswer(worker string) string {
	return b.answerPrefix(fleet.NodeOf(worker)) + rand.Text()
}

// request sends a request to a worker's agent, and returns the first answer. The subscription is made for this request alone:
// subjects of answers have a random part, so the agent can answer this request, and no other of this router. nats.ErrNoResponders
// means that there is no agent.
func (b *Bus) request(ctx context.Context, worker, subject string, data []byte) (*nats.Msg, error) {
	answer := b.newAnswer(worker)
	sub, err := b.control.nc.SubscribeSync(answer)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()

	if err := b.control.nc.PublishRequest(subject, answer, data); err != nil {
		return nil, err
	}
	m, err := sub.NextMsgWithContext(ctx)
	if err == nil && len(m.Data) == 0 && m.Header.Get("Status") == noResponders {
		err = nats.ErrNoResponders
	}
	return m, err
}

// noResponders is the status with which NATS answers a request to a subject without a subscription.
const noResponders = "503"

// decodeRequest fills an empty request to a worker's agent from a message. It must name a subject of that agent's node for the answer:
// the agent may write to others, such as its leases. Routers of earlier releases name an inbox.
func (b *Bus) decodeRequest(request proto.Message, worker string, m *nats.Msg) error {
	isAnswer := strings.HasPrefix(m.Reply, b.answerPrefix(fleet.NodeOf(worker)))
	switch {
	case m.Reply == "":
		return errors.New("a request must name a reply subject")
	case !isAnswer && !strings.HasPrefix(m.Reply, nats.InboxPrefix):
		return fmt.Errorf("a request names the reply subject %.128q, which is none for answers", m.Reply)
	}
	return decode(request, m.Data)
}
