package admin

import "github.com/stator-project/stator/extproc/accesslog"

func envoyTable(list []accesslog.Envoy) string {
	return table("ENVOY\tENDS BY\tFOLLOWED\tACCESS LOG\tRESPONSE\tSTREAM END\tENGINES", func(row func(...any)) {
		for _, e := range list {
			row(e.Name, e.Ends, e.Followed, e.ByAccessLog, e.ByResponse, e.ByStreamEnd, e.ByEngines)
		}
	})
}
