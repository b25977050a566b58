-- name: select_names
-- What stands at which path, by path: for whoever completes a name.
SELECT kind, path FROM lazaretto_queues ORDER BY path_key LIMIT 1000
